"""The kernel that benchmarks/simulator.py times is a real one: right, and nothing left out."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from benchmarks.simulator import numpy_product, scaled_product
from dslearn.sim import recording


@pytest.mark.parametrize("tile", [32, 128])
@pytest.mark.parametrize("rows", [1, 3])
def test_block_scaled_product(tile, rows):
    inner, columns = 256, 2048
    draw = np.random.default_rng(rows)
    codes = draw.integers(0, 0x78, (inner, columns), dtype=np.uint8)
    codes[:, ::3] |= 0x80
    weight = codes.view(ml_dtypes.float8_e4m3)
    scale = np.exp2(draw.integers(-8, 3, (inner // tile, columns // tile))).astype(np.float32)
    x = (draw.integers(-9, 10, (rows, inner)) / 8).astype(ml_dtypes.bfloat16)
    with recording() as launches:
        y = scaled_product(x=x, weight=weight, scale=scale, tile=tile)
    wide = weight.astype(np.float64) * np.repeat(np.repeat(scale, tile, 0), tile, 1)
    exact = x.astype(np.float64) @ wide  # codes times powers of two are bf16 numbers already
    got = y.astype(np.float64)
    size = np.abs(x.astype(np.float64)) @ np.abs(wide)
    assert (np.abs(got - exact) <= 2.0**-8 * np.abs(exact) + 1e-6 * size).all()
    numpy = numpy_product(x, weight, scale, tile).astype(np.float64)
    assert (np.abs(numpy - exact) <= 2.0**-8 * np.abs(exact) + 1e-6 * size).all()
    names = [one.name for one in launches[0].cores[0]]
    assert names.count("nc_matmul") == inner // 128 * columns // 512
    assert names.count("tensor_tensor") == inner // 128 and np.abs(got).max() > 0
