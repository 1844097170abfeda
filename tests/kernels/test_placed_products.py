"""What every product with a placed weight keeps: exact sums, one rounding, rows apart, bytes.

Tests of a single kernel are in its own file.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dslearn.formats.place import place_fp8
from dslearn.formats.place_fp4 import place_fp4, place_widened
from dslearn.kernels.fp4_linear import fp4_linear
from dslearn.kernels.fp4_widened import fp4_widened
from dslearn.kernels.fp8_folded import fp8_folded
from dslearn.kernels.fp8_linear import fp8_linear
from dslearn.sim.rules import KernelError
from tests.support import linear
from tests.support.kernels import bits, dma_bytes, recorded

Weight = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Product:
    """A kernel, weights [n, k] for it (whole: with exact sums), how they lie, what they are."""

    kernel: Any
    weight: Callable[..., Weight]
    place: Callable[..., Weight]
    values: Callable[..., np.ndarray]
    sizes: tuple[tuple[int, int, int], ...]
    constants: int = 0  # bytes that each core loads besides

    def placed(self, n: int, k: int) -> Weight:
        return self.place(*self.weight(n, k, False))


def fp8(kernel: Any, tile: int, *sizes: tuple[int, int, int]) -> Product:
    return Product(
        kernel,
        lambda n, k, whole: linear.fp8(n, k, tile, whole),
        partial(place_fp8, tile=tile),
        partial(linear.fp8_values, tile=tile),
        sizes,
    )


def fp4(kernel: Any, place: Any, constants: int, *sizes: tuple[int, int, int]) -> Product:
    return Product(
        kernel,
        lambda n, k, whole: linear.fp4(n, k, 3 if whole else 9),
        place,
        linear.fp4_values,
        sizes,
        constants,
    )


FEW = (1, 1, 1), (1, 128, 256), (2, 300, 130), (3, 33, 513), (16, 257, 31), (64, 130, 200)
MANY = (1, 1, 1), (2, 300, 130), (130, 33, 257), (64, 129, 700), (512, 100, 60), (600, 64, 129)
PROMPTS = (1, 32, 1), (130, 64, 257), (512, 96, 60), (600, 64, 129)
PRODUCTS = {
    "fp8_folded 32": fp8(fp8_folded, 32, *FEW),
    "fp8_folded 128": fp8(fp8_folded, 128, *FEW),
    "fp8_linear 32": fp8(fp8_linear, 32, *MANY),
    "fp8_linear 128": fp8(fp8_linear, 128, *MANY),
    "fp4_linear": fp4(fp4_linear, place_fp4, 128 * 128 * 2, *PROMPTS, (2, 544, 130), (5, 4608, 70)),
    "fp4_widened": fp4(fp4_widened, place_widened, 0, *PROMPTS, (2, 320, 130), (64, 160, 700)),
}
each = pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS)


@pytest.mark.parametrize(
    "product, size",
    [
        pytest.param(product, size, id=f"{name} {size}")
        for name, product in PRODUCTS.items()
        for size in product.sizes
    ],
)
def test_sums_of_whole_numbers_are_the_exact_ones(product, size):
    m, k, n = size
    x, weight = linear.whole_rows(m, k), product.weight(n, k, True)
    y = product.kernel(x, *product.place(*weight), n, True)
    exact = linear.product(x, product.values(*weight))
    assert y.dtype == torch.float32 and np.array_equal(y.numpy(), exact)
    assert k == 1 or np.abs(exact).max() > 0


@pytest.mark.parametrize("outputs", [1, 100, 128, 129, 256, 300, 1000, 4300])
@each
def test_two_cores_give_the_bytes_of_one(product, outputs):
    x, placed = linear.rows(5, 160), product.placed(outputs, 160)
    one, two = product.kernel[1](x, *placed, outputs), product.kernel[2](x, *placed, outputs)
    assert torch.equal(bits(one), bits(two)) and one.float().abs().max() > 0


@each
def test_the_result_is_rounded_once(product):
    x, placed = linear.rows(5, 192), product.placed(140, 192)
    wide, y = product.kernel(x, *placed, 140, True), product.kernel(x, *placed, 140)
    assert torch.equal(bits(y), bits(wide.bfloat16())) and not torch.equal(y.float(), wide)


@each
def test_special_values_stay_in_their_row(product):
    x = linear.rows(5, 64)
    x[0], x[1], x[2, 3], x[3, 40] = 0.0, -0.0, math.inf, math.nan
    placed = product.placed(40, 64)
    y = product.kernel(x, *placed, 40, True)
    twin = import_module(f"dslearn.ops.{product.kernel.__name__}").reference
    expected = twin(x, *placed, 40, True)
    assert (y[:2] == 0).all() and y[3].isnan().all() and y[4].isfinite().all()
    torch.testing.assert_close(y[2], expected[2], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("rows", [3, 300])
@each
def test_each_byte_moves_once(product, rows, cores):
    if rows > 128 and product.kernel is fp8_folded:
        rows = 128  # more are chunks, and each reads the weight
    x, (weight, power) = linear.rows(rows, 224), product.placed(600, 224)
    launched = recorded(lambda: product.kernel[cores](x, weight, power, 600))
    moved = [dma_bytes(core) for core in launched]
    wanted = weight.numel() + power.numel() + cores * (rows * 224 * 2 + product.constants)
    assert sum(read for read, _ in moved) == wanted
    assert sum(wrote for _, wrote in moved) == rows * 600 * 2


@pytest.mark.parametrize("name", ["fp8_folded 32", "fp4_widened"])
def test_codes_meet_no_engine_but_the_tensor_engine(name):
    product = PRODUCTS[name]
    placed = product.placed(600, 224)
    launched = recorded(lambda: product.kernel[2](linear.rows(3, 224), *placed, 600))
    readers = {
        one.name for core in launched for one in core for i in one.inputs
        if i.dtype == "float8_e4m3"
    }  # fmt: skip
    assert readers == {"nc_matmul"}


@each
def test_more_than_was_placed_is_refused(product):
    placed = product.placed(100, 64)
    with pytest.raises(AssertionError, match="outputs"):
        product.kernel(linear.rows(2, 64), *placed, 257)
    inputs = 512 if product.kernel is fp4_linear else 128
    with pytest.raises(KernelError, match="rule"):
        product.kernel(linear.rows(2, inputs + 1), *placed, 100)
    assert product.kernel(linear.rows(2, inputs), *placed, 100).isfinite().all()
