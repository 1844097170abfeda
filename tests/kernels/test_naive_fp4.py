"""naive_fp4 against its twin and against ml_dtypes: exact sums, all codes, odd sizes, two cores."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from dslearn.kernels.naive_fp4 import naive_fp4
from dslearn.ops.naive_fp4 import reference

SIZES = [(1, 32, 32), (3, 96, 160), (7, 160, 128), (64, 256, 512), (2, 128, 1184)]


def inputs(m, k, n, seed=0):
    """Every code, whole numbers: sums that fp32 holds exactly, in any order."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-2, 3, (m, k)).astype(ml_dtypes.bfloat16)
    packed = rng.integers(0, 256, (n, k // 2), np.uint8)
    return x, packed, rng.integers(126, 130, (n, k // 32), np.uint8)


def by_numpy(x, packed, scale):
    codes = np.stack([packed & 15, packed >> 4], -1).reshape(packed.shape[0], -1)
    weight = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    weight *= np.repeat(np.exp2(scale.astype(np.float64) - 127), 32, 1)
    return (x.astype(np.float64) @ weight.T).astype(np.float32).astype(x.dtype)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_every_sum_is_exact(size):
    arguments = inputs(*size)
    y = naive_fp4(*arguments)
    assert np.array_equal(y, by_numpy(*arguments))
    assert y.shape == (size[0], size[2]) and np.abs(y.astype(np.float32)).max() > 1


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_equals_its_twin(size):
    x, packed, scale = inputs(*size, seed=1)
    y = naive_fp4(x, packed, scale)
    tensors = (
        torch.from_numpy(x.view(np.int16)).view(torch.bfloat16),
        *map(torch.from_numpy, (packed, scale)),
    )
    expected = reference(*tensors).float().numpy()
    assert np.array_equal(y.astype(np.float32), expected) and expected.any()


def test_every_pair_of_codes_is_decoded_exactly():
    packed = np.tile(np.arange(256, dtype=np.uint8).reshape(16, 16), (2, 1))  # [32, 16 bytes]
    x, scale = np.eye(32, dtype=ml_dtypes.bfloat16), np.full((32, 1), 127, np.uint8)
    y = naive_fp4(x, packed, scale).T.astype(np.float32)
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    values = np.concatenate([values, -values])
    assert np.array_equal(y[:, 0::2], values[packed & 15])
    assert np.array_equal(y[:, 1::2], values[packed >> 4])


@pytest.mark.parametrize("outputs", [64, 96, 160, 256, 1088])
def test_two_cores_give_the_bytes_of_one(outputs):
    arguments = inputs(2, 64, outputs)
    one, two = naive_fp4[1](*arguments), naive_fp4[2](*arguments)
    assert np.array_equal(one.view(np.uint16), two.view(np.uint16)) and one.any()


@pytest.mark.parametrize("size", [(1, 48, 64), (1, 64, 40), (129, 64, 64)], ids=str)
def test_sizes_that_it_does_not_take(size):
    m, k, n = size
    x, packed = np.zeros((m, k), ml_dtypes.bfloat16), np.zeros((n, k // 2), np.uint8)
    scale = np.full((n, -(-k // 32)), 127, np.uint8)
    with pytest.raises(AssertionError, match="multiple of 32|at most 128"):
        naive_fp4(x, packed, scale)
    assert naive_fp4(x[:1, :32], packed[:32, :16], scale[:32, :1]).shape == (1, 32)
