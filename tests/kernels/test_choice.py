"""Importing `dslearn.kernels` picks the vendor's `nki` where it is, the stand-in elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REAL = {
    "__init__.py": "",
    "isa.py": "nc_matmul = None\n",
    "language.py": "fori_loop = None\n",
}
PLACEHOLDER = {"__init__.py": "raise ImportError('WRONG PACKAGE: see the vendor')\n"}
SHOW = (
    "import os, dslearn.kernels as k, nki\n"
    "mark = getattr(nki, '__dslearn_stand_in__', False)\n"
    "print(k.NKI.status, mark, os.environ['NEURON_PLATFORM_TARGET_OVERRIDE'], bool(k.NKI.detail))"
)


def chosen(tmp_path: Path, package: dict[str, str], **environment: str) -> str:
    """What a fresh process prints whose `nki` is `package`."""
    for name, text in package.items():
        (tmp_path / "nki").mkdir(exist_ok=True)
        (tmp_path / "nki" / name).write_text(text)
    clean = {k: v for k, v in os.environ.items() if k != "NEURON_PLATFORM_TARGET_OVERRIDE"}
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", SHOW],
        env={**clean, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
    )
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("package", "expected"),
    [
        ({}, "stand-in True trn2 True"),
        (PLACEHOLDER, "stand-in True trn2 True"),
        (REAL, "real False trn2 True"),
    ],
    ids=["absent", "placeholder", "real"],
)
def test_who_runs_kernels(tmp_path, package, expected):
    assert chosen(tmp_path, package) == expected


def test_a_target_that_is_set_stays(tmp_path):
    given = chosen(tmp_path, {}, NEURON_PLATFORM_TARGET_OVERRIDE="gen3")
    assert given == "stand-in True gen3 True"
    other = chosen(tmp_path, {}, NEURON_PLATFORM_TARGET_OVERRIDE="trn3")
    assert "NotSupportedError" in other and "trn2" in other
