"""naive_fp8 against its twin and against ml_dtypes: exact sums, all codes, odd sizes, two cores."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from dslearn.kernels.naive_fp8 import naive_fp8
from dslearn.ops.naive_fp8 import reference

SIZES = [(1, 32, 32), (3, 96, 160), (7, 160, 128), (128, 256, 512), (1, 128, 1184)]


def inputs(m, k, n, seed=0):
    """Whole numbers and a few powers of two: sums that fp32 holds exactly, in any order."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-2, 3, (m, k)).astype(ml_dtypes.bfloat16)
    magnitude = rng.choice(np.array([0, 0x30, 0x38, 0x40, 0x3C, 0x44], np.uint8), (n, k))
    codes = magnitude | rng.choice(np.array([0, 0x80], np.uint8), (n, k))
    return x, codes, rng.integers(126, 130, (n // 32, k // 32), np.uint8)


def by_numpy(x, codes, scale):
    weight = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    power = np.exp2(scale.astype(np.float64) - 127)
    weight *= np.repeat(np.repeat(power, 32, 0), 32, 1)
    return (x.astype(np.float64) @ weight.T).astype(np.float32).astype(x.dtype)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_every_sum_is_exact(size):
    arguments = inputs(*size)
    y = naive_fp8(*arguments)
    assert np.array_equal(y.view(np.uint16), by_numpy(*arguments).view(np.uint16))
    assert y.shape == (size[0], size[2]) and np.abs(y.astype(np.float32)).max() > 1


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_equals_its_twin(size):
    x, codes, scale = inputs(*size, seed=1)
    y = naive_fp8(x, codes, scale)
    tensors = (
        torch.from_numpy(x.view(np.int16)).view(torch.bfloat16),
        *map(torch.from_numpy, (codes, scale)),
    )
    assert torch.equal(torch.from_numpy(y.view(np.int16)).view(torch.bfloat16), reference(*tensors))


def test_every_code_but_nan_is_decoded_exactly():
    codes = np.arange(256, dtype=np.uint8)
    codes[codes & 0x7F == 0x7F] = 0
    tile = np.tile(codes.reshape(8, 32), (4, 1))  # [32 outputs, 32 inputs], each code four times
    x, scale = np.eye(32, dtype=ml_dtypes.bfloat16), np.array([[127]], np.uint8)
    y = naive_fp8(x, tile, scale)
    assert np.array_equal(
        y.T.astype(np.float32), tile.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    )
    assert y.astype(np.float32).max() == 448, "beyond what trn2's own format holds"


@pytest.mark.parametrize("byte", [1 + 20, 127, 254 - 20])
def test_scales_far_from_one(byte):
    x, codes, _ = inputs(2, 32, 32)
    scale = np.array([[byte]], np.uint8)
    assert np.array_equal(naive_fp8(x, codes, scale), by_numpy(x, codes, scale))


@pytest.mark.parametrize("outputs", [64, 96, 160, 256, 1088])
def test_two_cores_give_the_bytes_of_one(outputs):
    arguments = inputs(2, 64, outputs)
    one, two = naive_fp8[1](*arguments), naive_fp8[2](*arguments)
    assert np.array_equal(one.view(np.uint16), two.view(np.uint16)) and one.any()


@pytest.mark.parametrize("size", [(1, 48, 64), (1, 64, 40), (129, 64, 64)], ids=str)
def test_sizes_that_it_does_not_take(size):
    m, k, n = size
    x = np.zeros((m, k), ml_dtypes.bfloat16)
    codes, scale = np.zeros((n, k), np.uint8), np.full((-(-n // 32), -(-k // 32)), 127, np.uint8)
    with pytest.raises(AssertionError, match="multiple of 32|at most 128"):
        naive_fp8(x, codes, scale)
    assert naive_fp8(x[:1, :32], codes[:32, :32], scale[:1, :1]).shape == (1, 32)
