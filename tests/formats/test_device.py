"""Checkpoint convention to device convention: what changes, what is counted, what is refused."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn.errors import FormatError
from dslearn.formats import device, e4m3, rows, tiles
from dslearn.formats.halve import PIECE, TABLE

SHAPES = [(64, 96), (33, 31), (1, 1), (130, 67), (257, 300), (0, 64)]


def weight(shape, tile=32, seed=0, magnitude=0x7F):
    """Random codes below `magnitude`, and scale bytes around 2^-7."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, magnitude, shape, np.uint8) | rng.integers(0, 2, shape, np.uint8) << 7
    scale = rng.integers(110, 130, tiles.grid_of(shape, tile), np.uint8)
    return torch.from_numpy(codes), torch.from_numpy(scale)


def needed(codes, tile):
    """Marks of the tiles that hold a code above 0x77, by looking at each."""
    grid = tiles.grid_of(codes.shape, tile)
    marks = torch.zeros(grid, dtype=torch.bool)
    for i, j in np.ndindex(*grid):
        part = codes[i * tile : (i + 1) * tile, j * tile : (j + 1) * tile]
        marks[i, j] = bool(((part & 0x7F) > 0x77).any())
    return marks


@pytest.mark.parametrize("tile", [32, 128])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_is_the_table_and_one_more(shape, tile):
    codes, scale = weight(shape, tile)
    new, byte, report = device.to_device(codes, scale, tile)
    assert np.array_equal(new.numpy(), TABLE[codes.numpy()]) and torch.equal(byte, scale + 1)
    assert report.tiles == report.of_tiles == scale.numel()


@pytest.mark.parametrize("tile", [32, 128])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("top", [0x76, 0x78, 0x7F])
def test_needed_touches_only_tiles_with_a_code_above_240(shape, tile, top):
    codes, scale = weight(shape, tile, magnitude=top)
    codes[:1, :1] = 0x7E
    marks = needed(codes, tile)
    new, byte, report = device.to_device(codes, scale, tile, "needed")
    wide = marks.repeat_interleave(tile, 0)[: shape[0]].repeat_interleave(tile, 1)[:, : shape[1]]
    want = torch.where(wide, torch.from_numpy(TABLE[codes.numpy()]), codes)
    assert torch.equal(new, want) and torch.equal(byte, scale + marks.to(torch.uint8))
    assert report.tiles == int(marks.sum())


@settings(max_examples=60, deadline=None)
@given(
    out=st.integers(1, 70),
    into=st.integers(1, 70),
    seed=st.integers(0, 99),
    mode=st.sampled_from(["every", "needed"]),
    top=st.sampled_from([0x20, 0x79, 0x7F]),
)
def test_report_equals_the_change_of_the_values(out, into, seed, mode, top):
    codes, scale = weight((out, into), seed=seed, magnitude=top)
    new, byte, report = device.to_device(codes, scale, mode=mode)
    change = (tiles.dequantize(new, byte) - tiles.dequantize(codes, scale)).abs()
    assert report.rounded == int((change > 0).sum())
    assert report.max_error == change.max().item()
    assert (new & 0x7F).max() <= 0x77, "no code that trn2 would read as infinity or NaN"
    read_by_trn2 = e4m3.decode(new, "ieee")
    assert torch.equal(read_by_trn2, e4m3.decode(new, "ocp"))


@pytest.mark.parametrize("mode", ["every", "needed"])
@pytest.mark.parametrize("shape", [(64, 64), (33, 65), (95, 7), (1, 300), (700, 1000)])
@pytest.mark.parametrize("few", [0, 1, 9])
def test_the_few_small_codes_of_a_trained_weight_are_all_counted(shape, few, mode):
    rng = np.random.default_rng(few)
    codes = torch.from_numpy(rng.integers(0x10, 0x79, shape, dtype=np.uint8) | 0x80)
    for code in range(few):
        codes[rng.integers(shape[0]), rng.integers(shape[1])] = 2 * code
        codes[-1, -1 - code % shape[1]] = 2 * code + 1
    grid = -(-shape[0] // 32), -(-shape[1] // 32)
    scale = torch.from_numpy(rng.integers(90, 130, grid, dtype=np.uint8))
    new, byte, report = device.to_device(codes, scale, mode=mode)
    change = (tiles.dequantize(new, byte) - tiles.dequantize(codes, scale)).abs()
    assert report.rounded == int((change > 0).sum())
    assert report.max_error == change.max().item()


def test_needed_keeps_more_weights_exact():
    rng = np.random.default_rng(0)
    w = torch.from_numpy(rng.standard_t(2, (512, 512)).astype(np.float32))
    codes, scale = tiles.quantize(w)
    every = device.to_device(codes, scale)[2]
    some = device.to_device(codes, scale, mode="needed")[2]
    assert 0 < some.tiles < every.tiles and 0 < some.rounded < every.rounded


def test_device_bytes_of_a_224_quantised_weight_are_those_of_the_448_one_converted():
    w = torch.randn(96, 64, generator=torch.Generator().manual_seed(0))
    new, byte, _ = device.to_device(*tiles.quantize(w))
    half, double = tiles.quantize(w, fp8_max=224)
    normal = half & 0x7F >= 0x10
    assert torch.equal(byte, double) and torch.equal(new[normal], half[normal])


@pytest.mark.parametrize("nan", [0x7F, 0xFF])
def test_nan_codes_stay_nan_and_are_not_counted(nan):
    codes, scale = weight((32, 64), magnitude=0x10)
    codes[0, 0] = nan
    for mode in ("every", "needed"):
        new, _, report = device.to_device(codes, scale, mode=mode)
        assert new[0, 0] == nan and np.isfinite(report.max_error)
    assert report.tiles == 1, "0x7f is above 0x77"


@pytest.mark.parametrize("mode", ["every", "needed"])
def test_in_place_uses_the_same_memory(mode):
    codes, scale = weight((70, 40))
    want = device.to_device(codes, scale, mode=mode)
    kept = scale.clone()
    new, byte, report = device.to_device(codes, scale, mode=mode, in_place=True)
    assert new.data_ptr() == codes.data_ptr() and torch.equal(new, want[0])
    assert torch.equal(byte, want[1]) and report == want[2] and torch.equal(scale, kept)


def test_many_bands_and_threads():
    codes, scale = weight((3 * PIECE // 1024 + 40, 1024))
    want = device.to_device(codes, scale, threads=1)
    for threads in (2, 3, 100):
        got = device.to_device(codes, scale, threads=threads)
        assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1]) and got[2] == want[2]
    wide, wide_scale = weight((128, 2048), 128)
    assert np.array_equal(device.to_device(wide, wide_scale, 128)[0], TABLE[wide.numpy()])


@pytest.mark.parametrize("mode", ["every", "needed"])
def test_engram_rows(mode):
    x = torch.from_numpy(np.random.default_rng(0).standard_t(2, (50, 256)).astype(np.float32))
    codes, scale = rows.quantize_fp8(x)
    new, byte, report = device.rows_to_device(codes, scale, mode)
    change = (rows.dequantize_fp8(new, byte) - rows.dequantize_fp8(codes, scale)).abs()
    assert report.rounded == int((change > 0).sum()) and report.max_error == change.max().item()
    assert report.of_tiles == 400 and (report.tiles == 400) == (mode == "every")
    assert torch.equal(byte.int() - scale.int(), (byte != scale).int())


@pytest.mark.parametrize("byte", [254, 255])
def test_a_scale_without_successor_is_refused_before_anything_is_written(byte):
    codes, scale = weight((64, 64), magnitude=0x70)
    scale[1, 0] = byte
    kept = codes.clone()
    with pytest.raises(FormatError, match=f"scale byte {byte} of tile \\(1, 0\\) has no successor"):
        device.to_device(codes, scale, in_place=True)
    assert torch.equal(codes, kept)
    _, same, report = device.to_device(codes, scale, mode="needed")
    assert report.tiles == 0 and torch.equal(same, scale), "that tile needs no halving"
    codes[40, 3] = 0xFE
    with pytest.raises(FormatError, match="no successor"):
        device.to_device(codes, scale, mode="needed")


def test_other_refusals():
    codes, scale = weight((64, 64))
    with pytest.raises(FormatError, match="'every' or 'needed'"):
        device.to_device(codes, scale, mode="some")
    with pytest.raises(FormatError, match="scale grid"):
        device.to_device(codes, scale[:1])
    with pytest.raises(FormatError, match="contiguous"):
        device.to_device(codes.T, scale, in_place=True)
    with pytest.raises(FormatError, match="must divide"):
        device.rows_to_device(codes, torch.zeros(64, 3, dtype=torch.uint8))
    with pytest.raises(FormatError, match="\\[rows, K\\]"):
        device.rows_to_device(codes, scale)
