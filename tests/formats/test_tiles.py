"""Weight tiles: exact definition on ragged sizes, grids, refusals, decoding in parts."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn.errors import FormatError
from dslearn.formats import e4m3, tiles, ue8m0
from tests.formats import formats_oracle as oracle

SHAPES = [(64, 96), (33, 31), (1, 1), (130, 67), (31, 257), (128, 128)]


def matrix(shape, seed=0):
    rng = np.random.default_rng(seed)
    w = rng.standard_normal(shape) * 2.0 ** rng.integers(-12, 4, (shape[0], 1))
    return torch.from_numpy(w.astype(np.float32))


@pytest.mark.parametrize("fp8_max", [448, 240, 224])
@pytest.mark.parametrize("tile", [32, 128])
@pytest.mark.parametrize("shape", SHAPES)
def test_quantize_equals_the_exact_definition_tile_by_tile(shape, tile, fp8_max):
    w = matrix(shape)
    codes, scale = tiles.quantize(w, tile, fp8_max)
    assert codes.shape == shape and codes.is_contiguous()
    assert scale.shape == (-(-shape[0] // tile), -(-shape[1] // tile))
    for i, j in np.ndindex(*scale.shape):
        part = w[i * tile : (i + 1) * tile, j * tile : (j + 1) * tile].reshape(1, -1).numpy()
        want, byte = oracle.quantize_fp8(part, part.size, fp8_max)
        got = codes[i * tile : (i + 1) * tile, j * tile : (j + 1) * tile].reshape(1, -1)
        assert np.array_equal(got.numpy(), want) and scale[i, j] == byte.item()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 140), st.integers(0, 140), st.sampled_from([32, 128]))
def test_dequantize_repeats_each_scale_over_its_tile(out, into, tile):
    codes = torch.from_numpy(np.random.default_rng(out).integers(0, 127, (out, into), np.uint8))
    grid = tiles.grid_of((out, into), tile)
    scale = (torch.arange(grid[0] * grid[1]) % 200 + 20).to(torch.uint8).view(grid)
    wide = ue8m0.decode(scale).repeat_interleave(tile, 0)[:out].repeat_interleave(tile, 1)
    want = e4m3.decode(codes) * wide[:, :into]
    assert torch.equal(tiles.dequantize(codes, scale, tile), want)


def test_decoding_in_parts_gives_the_same(monkeypatch):
    w = matrix((300, 70))
    codes, scale = tiles.quantize(w)
    whole = tiles.dequantize(codes, scale)
    monkeypatch.setattr(tiles, "_PART", 4000)
    assert torch.equal(tiles.dequantize(codes, scale), whole)
    step = ue8m0.decode(scale).repeat_interleave(32, 0)[:300].repeat_interleave(32, 1)[:, :70] / 512
    assert bool(((whole - w).abs() <= torch.maximum(w.abs() / 16, step / 2)).all())


def test_stored_dtypes_and_bfloat16():
    w = matrix((40, 50)).bfloat16()
    codes, scale = tiles.quantize(w)
    assert torch.equal(codes, tiles.quantize(w.float())[0])
    stored = tiles.dequantize(codes.view(torch.float8_e4m3fn), scale.view(torch.float8_e8m0fnu))
    assert torch.equal(stored, tiles.dequantize(codes, scale))


@pytest.mark.parametrize("shape", [(0, 64), (64, 0), (0, 0)])
def test_empty_matrices(shape):
    codes, scale = tiles.quantize(torch.zeros(shape))
    assert codes.shape == shape and scale.shape == tiles.grid_of(shape, 32)
    assert tiles.dequantize(codes, scale).shape == shape


def test_zero_and_nan_tiles():
    w = torch.zeros(64, 64)
    w[40, 3] = torch.nan
    codes, scale = tiles.quantize(w)
    assert scale.tolist() == [[105, 105], [255, 105]], "2^-22 comes from the floor 1e-4"
    back = tiles.dequantize(codes, scale)
    assert back[32:, :32].isnan().all() and back.isnan().sum() == 1024


def test_refusals_say_the_rule():
    codes, scale = tiles.quantize(torch.zeros(64, 64))
    with pytest.raises(FormatError, match="32 .V4.1. or 128 .V4."):
        tiles.quantize(torch.zeros(4, 4), 64)
    with pytest.raises(FormatError, match="\\[out, in\\]"):
        tiles.quantize(torch.zeros(4))
    with pytest.raises(FormatError, match="must be \\(2, 2\\)"):
        tiles.dequantize(codes, scale[:1])
    with pytest.raises(FormatError, match="without conversion"):
        tiles.dequantize(codes, scale.float())
