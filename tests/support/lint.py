"""Lint a source text and look at the rules that it breaks."""

from __future__ import annotations

from pathlib import Path

from dslearn.sim.lint import Finding, lint
from dslearn.sim.lint.examples import frame

IMPORTS = "import nki\nimport nki.isa as nisa\nimport nki.language as nl\n"


def findings(folder: Path, source: str, name: str = "kernels.py") -> tuple[Finding, ...]:
    """What the lint finds in `source`, saved as `name` in `folder`."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")
    return lint([path]).findings


def rules(folder: Path, source: str) -> list[str]:
    """The rules that `source` breaks, each once, sorted."""
    return sorted({finding.rule for finding in findings(folder, source)})


def in_kernel(folder: Path, example: str) -> list[str]:
    """The rules that statements break inside a kernel with `x`, `tile` and `n`."""
    return rules(folder, frame(example))
