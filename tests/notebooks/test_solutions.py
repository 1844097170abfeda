"""Exercises: the solution passes, the hole in the notebook fails and says what to do."""

from __future__ import annotations

import ast
import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dslearn.lessons import checks_01

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
SOLUTIONS = sorted((NOTEBOOKS / "solutions").glob("*.py"))
CHECKS = {"01": checks_01}


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"solutions_{path.stem}", path)
    assert spec and spec.loader, f"{path} cannot be imported"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def exercises(stem: str) -> list[str]:
    """Sources of the cells with the tag `exercise` of the notebook `stem`."""
    notebook = json.loads((NOTEBOOKS / f"{stem}.ipynb").read_text(encoding="utf-8"))
    tagged = (c for c in notebook["cells"] if "exercise" in c["metadata"].get("tags", []))
    return ["".join(cell["source"]) for cell in tagged]


CELLS = [
    pytest.param(path, cell, id=f"{path.stem}-{number}")
    for path in SOLUTIONS
    for number, cell in enumerate(exercises(path.stem), start=1)
]


def names(path: Path, cell: str) -> tuple[str, str]:
    """The function that a cell defines and the check it calls."""
    function, call = ast.parse(cell).body
    assert isinstance(function, ast.FunctionDef) and isinstance(call, ast.Expr)
    assert isinstance(call.value, ast.Call) and isinstance(call.value.func, ast.Name)
    return function.name, call.value.func.id


def run(path: Path, cell: str) -> None:
    checks = vars(CHECKS[path.stem[:2]])
    given: dict[str, Any] = {"solutions": load(path)}
    exec(cell, given | {k: v for k, v in checks.items() if k.startswith("check_")})


def test_every_notebook_with_exercises_has_solutions_and_checks():
    stems = {path.stem for path in NOTEBOOKS.glob("*.ipynb")}
    assert stems == {path.stem for path in SOLUTIONS}
    for stem in stems:
        assert 2 <= len(exercises(stem)) <= 4, f"{stem}: 2 to 4 exercises"


@pytest.mark.parametrize(("path", "cell"), CELLS)
def test_the_committed_cell_uses_the_solution_and_passes(path, cell, capsys):
    function, _ = names(path, cell)
    assert f"solutions.{function})" in cell
    run(path, cell)
    assert "cases are right" in capsys.readouterr().out


@pytest.mark.parametrize(("path", "cell"), CELLS)
def test_the_hole_fails_and_says_so(path, cell):
    function, check = names(path, cell)
    handed_in = cell.replace(f"solutions.{function}", function)
    number = check.removeprefix("check_").replace("_", ".")
    with pytest.raises(AssertionError, match=r"gives None, must be .*fill the hole") as caught:
        run(path, handed_in)
    assert str(caught.value).startswith(f"exercise {number}: {function}(")


def log2_ceiling(x: float) -> int:
    """The tempting solution: a rounded logarithm."""
    import math

    import numpy as np

    if not math.isfinite(x):
        return 255
    if x == 0:
        return 1
    return int(np.clip(np.ceil(np.log2(np.float32(x))) + 127, 1, 254))


def high_nibble_first(payload: bytes, scales: bytes, columns: int, row: int, column: int) -> float:
    return load(SOLUTIONS[0]).expert_weight(payload, scales, columns, row, column ^ 1)


def truncated(code: int) -> int:
    size = code & 0x7F
    return code if size == 0x7F else code - 8 if size >= 0x10 else code & 0x80 | size // 2


@pytest.mark.parametrize(
    ("check", "wrong", "words"),
    [
        (checks_01.check_01_1, log2_ceiling, "a rounded log2 says -9 here"),
        (checks_01.check_01_1, lambda x: 127, "a power of two is its own ceiling"),
        (checks_01.check_01_2, high_nibble_first, "it is in the low nibble of payload byte 0"),
        (checks_01.check_01_3, truncated, "3 steps of 2^-9 halve to 1.5: between two codes"),
        (checks_01.check_01_3, lambda c: c // 2, "halve to 1.5"),
    ],
)
def test_plausible_mistakes_are_caught_with_the_reason(check, wrong, words):
    with pytest.raises(AssertionError) as caught:
        check(wrong)
    assert words in str(caught.value)


def test_nan_may_not_be_halved():
    good = load(SOLUTIONS[0]).half_code
    with pytest.raises(AssertionError, match="NaN has no half"):
        checks_01.check_01_3(lambda code: code - 8 if code & 0x7F == 0x7F else good(code))
