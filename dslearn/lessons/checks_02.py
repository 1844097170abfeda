"""Checks of the exercises of notebook 02: scales beside the weight, codes in words, a kernel.

As in notebook 01, each stops at the first case that is wrong with a sentence on why.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

import dslearn.kernels  # noqa: F401 - decides which nki runs
from dslearn.formats import tables
from dslearn.lessons.checking import Case, run
from dslearn.sim import recording
from dslearn.sim.jit import jit

LANES = 128
Array = np.ndarray[Any, Any]
Folded = tuple[list[list[float]], list[float]]


def check_02_1(folded: Callable[..., Folded]) -> None:
    """`folded(x, codes, scales, tile)`: the copies of x, and y, with every weight untouched."""
    cases: list[Case] = []
    for outputs, inputs, tile in ((2, 2, 1), (4, 6, 2), (3, 6, 3), (6, 4, 2)):
        draw = np.random.default_rng([outputs, inputs, tile])
        x = draw.integers(-4, 5, inputs).astype(float).tolist()
        codes = draw.integers(-6, 7, (outputs, inputs)).astype(float)
        scales = 2.0 ** draw.integers(-3, 4, (outputs // tile, inputs // tile))
        wide = scales.repeat(tile, 1)
        copies = (wide * x).tolist()
        y = (codes * wide.repeat(tile, 0) @ x).tolist()
        why = f"copy b is for outputs {tile}b and following; input k meets scale [b][k // {tile}]"
        cases.append(((x, codes.tolist(), scales.tolist(), tile), (copies, y), why))
    run("02.1", "folded", folded, cases)


def check_02_2(low_codes: Callable[[int], int]) -> None:
    """`low_codes(word)`: e4m3 codes of the low nibbles of a word's four bytes, value x 2^-6."""
    draw = np.random.default_rng(2)
    words = [n * 0x01010101 for n in range(16)] + [0x10, 0x80F0F0F0, 0x76543210, 0xFEDCBA98]
    words += draw.integers(0, 2**32, 200).tolist()

    def due(word: int) -> int:
        nibbles = [word >> 8 * byte & 15 for byte in range(4)]
        return sum(((n & 8) << 4 | (n & 7) << 2) << 8 * byte for byte, n in enumerate(nibbles))

    def why(word: int) -> str:
        nibble = word & 15
        size = tables.E2M1_HALVES[nibble & 7] / 2
        sign = "-" if nibble & 8 else ""
        return (
            f"{word:#010x} becomes {due(word):#010x}: its lowest nibble, {nibble:#x}, is "
            f"{sign}{size:g}, and the e4m3 code of {sign}{size / 64:g} is {due(word) & 0xFF:#04x}"
        )

    run("02.2", "low_codes", low_codes, (((word,), due(word), why(word)) for word in words))


def check_02_3(product: Callable[..., Any]) -> None:
    """`product(x, codes, power)`: a kernel, [128 outputs, M] with one scale per output."""
    draw = np.random.default_rng(3)
    sizes = (1, 7, 64, 512)
    for rows in sizes:
        x = draw.integers(-4, 5, (LANES, rows)).astype(ml_dtypes.bfloat16)
        codes = draw.choice([0x00, 0x38, 0xB8, 0x40, 0x44], (LANES, LANES)).astype(np.uint8)
        power = np.exp2(draw.integers(-5, 6, (LANES, 1))).astype(np.float32)
        _kernel_case(product, rows, (x, codes, power))
    print(f"exercise 02.3: all {len(sizes)} cases are right")


def _kernel_case(product: Callable[..., Any], rows: int, arguments: tuple[Array, ...]) -> None:
    """One number of rows: the result, and who touched the weight."""
    x, codes, power = arguments
    call = f"exercise 02.3: product(x [128, {rows}], codes, power)"
    with recording() as launches:
        got = jit(product)(*arguments)
    due = codes.view(ml_dtypes.float8_e4m3).astype(np.float64).T @ x.astype(np.float64) * power
    assert got is not None, f"{call} gives None, must be [128, {rows}]: fill the hole, `...`"
    assert got.shape == due.shape, f"{call} gives {got.shape}, must be {due.shape}"
    wrong = np.argwhere(got.astype(np.float64) != due)
    n, m = wrong[0] if len(wrong) else (0, 0)
    assert not len(wrong), (
        f"{call} gives {got[n, m]} for output {n}, row {m}, must be {due[n, m]}: sum codes[k, n] "
        "x[k, m] over k in PSUM, then multiply by the scale of output n"
    )
    for step in launches[0].cores[0]:
        weights = any(prod(operand.shape) == LANES * LANES for operand in step.inputs)
        assert step.engine not in ("vector", "scalar", "gpsimd") or not weights, (
            f"{call}: {step.name} on {step.engine} reads every weight, 128 per lane; scale the "
            f"sums instead, {rows} per lane"
        )
