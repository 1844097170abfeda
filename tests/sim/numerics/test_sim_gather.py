"""Gathers and shuffles: the documented loops, offsets, groups, kept partitions."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn.sim.numerics import gather


def documented_local_gather(src, index, each, valid):
    """Group by group: the 16-partition slab flattened partitions first, e elements per index."""
    out = np.zeros((src.shape[0], valid * each), dtype=src.dtype)
    for group in range(src.shape[0] // 16):
        part = slice(16 * group, 16 * group + 16)
        for i, start in enumerate(index[part].flatten(order="F")[:valid].tolist()):
            out[part, i * each : (i + 1) * each] = src[part, start : start + each]
    return out


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), st.sampled_from([1, 2, 4, 8]), st.data())
def test_local_gather_is_the_documented_loop(groups, columns, each, data):
    valid = data.draw(st.integers(1, 16 * columns))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    src = rng.integers(0, 999, (16 * groups, 24)).astype(np.float32)
    index = rng.integers(0, 24 - each + 1, (16 * groups, columns)).astype(np.uint16)
    offsets = gather.local_offsets(index, each, valid)
    assert offsets.shape == (groups, valid * each)
    got = gather.local_gather(src, offsets)
    assert np.array_equal(got, documented_local_gather(src, index, each, valid))


def test_local_gather_by_hand():
    src = np.arange(16 * 10).reshape(16, 10)
    index = np.zeros((16, 1), dtype=np.uint16)
    index[:3, 0] = [8, 0, 4]  # element offsets, although two elements are read from each
    got = gather.local_gather(src, gather.local_offsets(index, 2, 3))
    assert got[1].tolist() == [18, 19, 10, 11, 14, 15]
    default = gather.local_offsets(np.full((32, 2), 65535, dtype=np.uint16))
    assert default.shape == (2, 32)
    assert (default == 65535).all()


def test_offsets_outside_the_data_are_refused():
    src = np.zeros((16, 4))
    edge = gather.local_offsets(np.full((16, 1), 3, dtype=np.uint16))
    assert gather.local_gather(src, edge).shape == (16, 16)
    with pytest.raises(IndexError):
        gather.local_gather(src, edge + 1)


def test_n_gather_moves_bits():
    codes = np.array([[0x7F, 0x80, 0x78, 0x00]] * 2, dtype=np.uint8).view(ml_dtypes.float8_e4m3)
    indices = np.array([[[3, 0], [0, 2]], [[1, 1], [1, 1]]], dtype=np.uint32)
    got = gather.n_gather(codes.reshape(2, 2, 2), indices)
    assert got.dtype == codes.dtype
    assert got.view(np.uint8).tolist() == [[[0, 0x7F], [0x7F, 0x78]], [[0x80, 0x80]] * 2]
    with pytest.raises(IndexError):
        gather.n_gather(codes, np.full((2, 1), 4, dtype=np.uint32))


def test_a_mask_of_zeros_broadcasts_one_partition():
    src = np.array([[1.0, 2.0]])
    got = gather.stream_shuffle(np.zeros((32, 2)), src, [0] * 32)
    assert (got == src).all()


@pytest.mark.parametrize("partitions", [1, 31, 32, 33, 96, 128])
def test_each_quadrant_is_shuffled_by_the_same_mask(partitions):
    mask = [(5 * i + 3) % 32 for i in range(32)]
    mask[7] = gather.KEEP
    src = np.arange(128 * 3).reshape(128, 3)
    dst = -np.ones((partitions, 3), dtype=int)
    got = gather.stream_shuffle(dst, src, mask)
    for p in range(partitions):
        entry = mask[p % 32]
        expected = dst[p] if entry == 255 else src[p - p % 32 + entry]
        assert got[p].tolist() == expected.tolist()
    assert (dst == -1).all()


def test_a_shuffle_may_read_what_it_writes_but_not_what_is_not_there():
    x = np.arange(32).reshape(32, 1)
    swap = [i ^ 1 for i in range(32)]
    assert gather.stream_shuffle(x, x, swap)[:4, 0].tolist() == [1, 0, 3, 2]
    with pytest.raises(IndexError):
        gather.stream_shuffle(x, x[:31], swap)
    assert gather.stream_shuffle(x[:4], x[:4], swap)[:, 0].tolist() == [1, 0, 3, 2]
