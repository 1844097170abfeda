"""Packages that look like the vendor's, and a fresh interpreter that finds them first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
WRONG = 'raise ImportError("WRONG PACKAGE: this is a placeholder, use the vendor\'s index")'
REAL = {
    "nki/__init__.py": "__version__ = '0.6.0'",
    "nki/isa.py": "def nc_matmul(): ...",
    "nki/language.py": "def fori_loop(): ...",
}


def write(folder: Path, files: dict[str, str]) -> None:
    """Put these texts into files below `folder`."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def python(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `python ARGUMENTS` in `folder`, where packages are found before those installed."""
    own = ("DSLEARN_", "NEURON_", "NKI_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    path = os.pathsep.join([str(folder), str(ROOT)])
    return subprocess.run(
        [sys.executable, *arguments],
        env=clean | {"PYTHONPATH": path} | environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )


def said(ran: subprocess.CompletedProcess[str]) -> str:
    """What it printed or, if it failed, the last line of its error."""
    return ran.stdout.strip() if ran.returncode == 0 else ran.stderr.strip().splitlines()[-1]
