"""engram_kv against its twin and the model's form: exact sums, scales, odd sizes, two cores."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn import backend
from dslearn.formats import inputs_first, rows
from dslearn.kernels.engram_kv import engram_kv
from dslearn.ops import engram_kv as ops
from dslearn.ops.engram_kv import reference
from tests.support.kernels import bits, dma_bytes, recorded
from tests.support.weights import fp8, near, of_fp8, whole_fp8, whole_rows

SIZES = [(1, 128, 64), (3, 160, 200), (6, 256, 320), (20, 96, 1000), (128, 64, 96)]


def placed(weight):
    codes, scale = inputs_first.fp8(*weight)
    return inputs_first.by_part(codes), inputs_first.scale_by_part(scale)


def whole_codes(seed, m, k):
    """Whole numbers as e4m3 codes with scales 1 and 2, and their values."""
    codes = whole_rows(seed, m, k).to(torch.float8_e4m3fn).view(torch.uint8)
    scale = (torch.arange(m * (k // 32)).view(m, -1) % 2 + 127).to(torch.uint8)
    return codes, scale, rows.dequantize_fp8(codes, scale).double()


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_every_sum_is_exact(size):
    m, k, n = size
    codes, scale, x = whole_codes(1, m, k)
    weight = whole_fp8(2, n, k)
    y = engram_kv(codes, scale, *placed(weight))
    assert torch.equal(y[:, :n], (x @ of_fp8(weight).T).to(torch.bfloat16))
    assert not y[:, n:].any() and y.abs().max() > 8
    assert torch.equal(y, reference(codes, scale, *placed(weight)))


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 9), st.integers(1, 6), st.integers(1, 150), st.integers(0, 9))
def test_random_products_are_near(m, blocks, n, seed):
    (codes, _), (weight) = fp8(seed, m, 32 * blocks), fp8(seed + 1, n, 32 * blocks)
    scale = torch.full((m, blocks), 120, dtype=torch.uint8) + torch.arange(blocks).to(torch.uint8)
    x = rows.dequantize_fp8(codes, scale).double()
    wide = of_fp8(weight)
    y = engram_kv(codes, scale, *placed(weight))[:, :n]
    assert near(y, x @ wide.T, x.abs() @ wide.abs().T) and y.shape == (m, n)


@pytest.mark.parametrize("size", [(1, 128, 64), (2, 96, 130), (6, 256, 448), (3, 64, 1088)])
def test_two_cores_give_the_bytes_of_one(size):
    m, k, n = size
    codes, scale, _ = whole_codes(3, m, k)
    weight = placed(fp8(4, n, k))
    one, two = (engram_kv[cores](codes, scale, *weight) for cores in (1, 2))
    assert torch.equal(bits(one), bits(two)) and one.any()


def test_activations_of_the_model():
    """What `rows.quantize_fp8` makes of a row gives the model's product on fake-quantised rows."""
    x = whole_rows(5, 4, 128, largest=100).float() / 64
    codes, scale = rows.quantize_fp8(x, 32, fp8_max=240)
    weight = fp8(6, 96, 128)
    y = engram_kv(codes, scale, *placed(weight))[:, :96]
    seen, wide = rows.fake_fp8(x, 32, 240).double(), of_fp8(weight)
    assert near(y, seen @ wide.T, seen.abs() @ wide.abs().T)


def test_every_code_and_the_extreme_scales():
    """All 240 finite codes of activations, against one weight of 1: subnormals and -0 included."""
    codes = torch.tensor([c for c in range(256) if c & 0x7F < 0x78], dtype=torch.uint8)
    grid = torch.zeros(len(codes), 32, dtype=torch.uint8)
    grid[:, 0] = codes
    weight = torch.zeros(64, 32, dtype=torch.uint8)
    weight[:, 0] = 0x38  # 1
    for byte, other in ((127, 127), (30, 220), (220, 30), (80, 60)):
        scale = torch.full((len(codes), 1), byte, dtype=torch.uint8)
        tile = torch.full((2, 1), other, dtype=torch.uint8)
        for some in (slice(0, 120), slice(120, 240)):
            y = engram_kv(grid[some], scale[some], *placed((weight, tile)))
            values = grid[some, 0].view(torch.float8_e4m3fn).double() * 2.0 ** (byte + other - 254)
            assert torch.equal(y[:, 5].double(), values)


def test_the_weight_is_read_once_and_as_it_is():
    m, k, n = 2, 256, 512
    codes, scale, _ = whole_codes(7, m, k)
    weight, grid = placed(fp8(8, n, k))
    cores = recorded(lambda: engram_kv[2](codes, scale, weight, grid))
    read = sum(dma_bytes(core)[0] for core in cores)
    activations = codes.numel() + scale.numel()
    assert read == weight.numel() + 32 * grid.numel() + 2 * activations
    engines = [
        one for core in cores for one in core if one.engine in ("vector", "scalar", "gpsimd")
    ]
    elements = sum(o.nbytes for one in engines for o in one.inputs)
    assert elements < 16 * weight.numel() / 8, "no engine but the tensor engine meets the weight"


def test_the_operation_runs_the_kernel():
    codes, scale, _ = whole_codes(9, 3, 64)
    weight = placed(whole_fp8(10, 70, 64))
    with backend.use("sim"):
        y = ops.engram_kv(codes, scale, *weight)
    assert torch.equal(y, ops.engram_kv(codes, scale, *weight)) and y.shape == (3, 128)


def test_what_cannot_be_is_refused():
    codes, scale, _ = whole_codes(11, 129, 64)
    weight = placed(whole_fp8(12, 64, 64))
    with pytest.raises(AssertionError, match="at most 128"):
        engram_kv(codes, scale, *weight)
    assert engram_kv(codes[:128], scale[:128], *weight).shape == (128, 64)
