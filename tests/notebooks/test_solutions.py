"""Exercises: the solution passes, the hole in the notebook fails and says what to do."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from dslearn.lessons import checks_01, checks_02, checks_03, checks_04, checks_05
from tests.support.solutions import NOTEBOOKS, SOLUTIONS, load

CHECKS = {"01": checks_01, "02": checks_02, "03": checks_03, "04": checks_04, "05": checks_05}


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


def swapped(x: list, codes: list, scales: list, tile: int) -> tuple:
    """Scales of another row of tiles."""
    return load(SOLUTIONS[1]).folded(x, codes, scales[::-1], tile)


def without_signs(word: int) -> int:
    return (word & 0x07070707) << 2


def dequantising(x, codes, power):
    """The naive kernel: the weight is scaled on Vector, per input instead of per output at that."""
    import nki.isa as nisa
    import nki.language as nl

    tile = nl.ndarray((128, 128), dtype=nl.uint8, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=codes)
    weight = nl.ndarray((128, 128), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.tensor_copy(dst=weight, src=tile.view(nl.float8_e4m3))
    return load(SOLUTIONS[1]).product(x, codes, power)


def unscaled(x, codes, power):
    import nki.isa as nisa
    import nki.language as nl

    ones = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.private_hbm)
    near = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=near, value=1.0)
    nisa.dma_copy(dst=ones, src=near)
    return load(SOLUTIONS[1]).product(x, codes, ones)


@pytest.mark.parametrize(
    ("check", "wrong", "words"),
    [
        (checks_02.check_02_1, swapped, "copy b is for outputs 1b and following"),
        (
            checks_02.check_02_2,
            without_signs,
            "0x08080808 becomes 0x80808080: its lowest nibble, 0x8, is -0",
        ),
        (checks_02.check_02_2, lambda w: w << 2 & 0xFFFFFFFF, "code of -0 is 0x80"),
        (checks_02.check_02_3, dequantising, "on vector reads every weight, 128 per lane"),
        (checks_02.check_02_3, unscaled, "then multiply by the scale of output n"),
        (checks_02.check_02_3, lambda x, codes, power: codes, "gives (128, 128), must be (128, 1)"),
    ],
)
def test_mistakes_with_scales_codes_and_kernels_are_caught(check, wrong, words):
    with pytest.raises(AssertionError) as caught:
        check(wrong)
    assert words in str(caught.value)


def pairs_of_calls(start: int, length: int) -> tuple[list[int], bool]:
    """Pairs counted from the first token of the call."""
    return list(range(start // 2, start // 2 + length // 2)), length % 2 == 1


def weighed_first(dots: list, weights: list, visible: int, k: int) -> list[int]:
    """ReLU of the sum instead of the sum of ReLUs."""
    total = [
        max(sum(w * h[j] for w, h in zip(weights, dots, strict=True)), 0) for j in range(visible)
    ]
    best = sorted(range(visible), key=lambda j: -total[j])[:k]
    return sorted(best) + [-1] * (k - len(best))


def highest_index(dots: list, weights: list, visible: int, k: int) -> list[int]:
    mirrored = [row[:visible][::-1] for row in dots]
    found = load(SOLUTIONS[2]).select(mirrored, weights, visible, k)
    best = sorted(visible - 1 - j for j in found if j >= 0)
    return best + [-1] * (k - len(best))


def unscaled_exp(blocks: Any, sink: float) -> float:
    import math

    keys = [key for block in blocks for key in block]
    p = [math.exp(score) for score, _ in keys]
    return sum(w * v for w, (_, v) in zip(p, keys, strict=True)) / (sum(p) + math.exp(sink))


def never_shrunk(blocks: Any, sink: float) -> float:
    """A new maximum, but what was summed under the old one stays as it is."""
    import math

    top, total, out = -math.inf, 0.0, 0.0
    for block in blocks:
        top = max([top, *(score for score, _ in block)])
        for score, value in block:
            total, out = total + math.exp(score - top), out + math.exp(score - top) * value
    return out / (total + math.exp(sink - top))


def without_sink(blocks: Any, sink: float) -> float:
    return load(SOLUTIONS[2]).attend(blocks, -float("inf"))


@pytest.mark.parametrize(
    ("check", "wrong", "words"),
    [
        (checks_03.check_03_1, pairs_of_calls, "the call brings positions [1], and 0 was waiting"),
        (checks_03.check_03_2, weighed_first, "a negative dot product counts as 0, before w"),
        (checks_03.check_03_2, highest_index, "of equal scores the lowest entry wins"),
        (
            checks_03.check_03_2,
            lambda dots, weights, visible, k: list(range(visible))[:k],
            "the two best in ascending order",
        ),
        (checks_03.check_03_3, unscaled_exp, "OverflowError: math range error, must be 2.53"),
        (checks_03.check_03_3, never_shrunk, "a new maximum shrinks what was summed before"),
        (checks_03.check_03_3, without_sink, "gives 3.0, must be 1.5: the sink takes half"),
    ],
)
def test_mistakes_with_groups_scores_and_blocks_are_caught(check, wrong, words):
    with pytest.raises(AssertionError) as caught:
        check(wrong)
    assert words in str(caught.value)
