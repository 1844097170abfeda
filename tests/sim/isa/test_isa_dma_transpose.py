"""dma_transpose: permutations by rank, hardware blocks, gathered rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslearn.sim.isa.dma_transpose import dma_transpose
from dslearn.sim.isa.enums import dge_mode, oob_mode
from dslearn.sim.language.allocate import ndarray
from dslearn.sim.tensor import NkiTensor
from tests.support.sim import HBM, PSUM, SBUF, expect_refusal, filled, values


def counting(*shape: int, kind: Any = np.int16) -> np.ndarray:
    return np.arange(np.prod(shape)).astype(kind).reshape(shape)


@pytest.mark.parametrize(
    ("shape", "axes"), [((5, 7), (1, 0)), ((3, 4, 6), (2, 1, 0)), ((3, 2, 4, 5), (3, 1, 2, 0))]
)
@pytest.mark.parametrize("region", [HBM, SBUF])
def test_dma_transposes_by_rank(shape: Any, axes: Any, region: Any) -> None:
    data = counting(*shape, kind=np.float32)
    expected = data.transpose(axes)
    dst = ndarray(expected.shape, "float32", SBUF)
    dma_transpose(dst=dst, src=filled(data, region))
    assert np.array_equal(values(dst), expected)
    dma_transpose(dst=dst, src=filled(-data, region), axes=axes)
    assert np.array_equal(values(dst), -expected)


def test_dma_transpose_refuses() -> None:
    src, dst = filled(counting(4, 6), HBM), ndarray((6, 4), "int16", SBUF)
    with expect_refusal("dma-transpose", "by rank"):
        dma_transpose(dst=dst, src=src, axes=(0, 1))
    with expect_refusal("shape", "gives (6, 4)"):
        dma_transpose(dst=ndarray((4, 6), "int16", SBUF), src=src)
    with expect_refusal("shape", "gives (6, 4)"):
        dma_transpose(dst=ndarray((6, 4, 1), "int16", SBUF), src=src)
    with expect_refusal("dtype", "must be the same"):
        dma_transpose(dst=ndarray((6, 4), "int32", SBUF), src=src)
    with expect_refusal("region", "must be in ['sbuf'], got private_hbm"):
        dma_transpose(dst=ndarray((6, 4), "int16", HBM), src=src)
    with expect_refusal("region", "got src=MemoryRegion.psum"):
        dma_transpose(dst=dst, src=filled(counting(4, 6), PSUM))
    with expect_refusal("operand", "oob_mode.skip"):
        dma_transpose(dst=dst, src=src, oob_mode=oob_mode.skip)
    with expect_refusal("platform", "priority", kind=NotImplementedError):
        dma_transpose(dst=dst, src=src, priority=1)
    dma_transpose(dst=dst, src=src)
    assert np.array_equal(values(dst), counting(4, 6).T)


@pytest.mark.parametrize(
    ("shape", "kind", "words"),
    [
        ((16, 64), np.int16, ""),
        ((16, 128), np.int16, ""),
        ((4, 8, 32), np.int16, ""),
        ((2, 3, 8, 32), np.int16, ""),
        ((32, 64), np.int16, "hwdge takes 16 rows, got 32"),
        ((16, 64), np.int32, "elements have 4 bytes"),
        ((16, 129), np.int16, "the last dimension is 129"),
        ((3, 16, 32), np.int16, "1, 2, 4, 8 or 16"),
        ((4, 6, 32), np.int16, "multiple of 16"),
    ],
)
def test_hardware_transposes_blocks(shape: Any, kind: Any, words: str) -> None:
    data = counting(*shape, kind=kind)
    expected = data.transpose({2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}[data.ndim])
    if words.startswith("the last"):
        dst = ndarray((128, 16), "int16", SBUF)
        with expect_refusal("shape"):  # 129 partitions do not exist
            dma_transpose(dst=dst, src=filled(data, HBM), dge_mode=dge_mode.hwdge)
        return
    dst = ndarray(expected.shape, np.dtype(kind), SBUF)
    if words:
        with expect_refusal("dma-transpose", words):
            dma_transpose(dst=dst, src=filled(data, HBM), dge_mode=dge_mode.hwdge)
    dma_transpose(
        dst=dst,
        src=filled(data, HBM),
        dge_mode=dge_mode.unknown if words else dge_mode.hwdge,
    )
    assert np.array_equal(values(dst), expected)


def gathered(table: NkiTensor, index: np.ndarray, rows: int, width: int, kind: str) -> NkiTensor:
    row = table.shape[1]
    tile = filled(index, kind=kind)
    return table.ap([[row, rows], [1, width]], vector_offset=tile, indirect_dim=0)


@given(
    shape=st.sampled_from([(16, 1), (48, 1), (128, 1), (128, 2)]),
    short=st.sampled_from([0, 16]),
    width=st.sampled_from([1, 5, 128]),
    seed=st.integers(0, 9),
)
def test_a_gathered_transpose_reads_indices_column_by_column(
    shape: Any, short: int, width: int, seed: int
) -> None:
    table = counting(40, 128)
    index = np.random.default_rng(seed).integers(0, 40, shape)
    rows = max(16, index.size - short)
    dst = ndarray((width, rows), "int16", SBUF)
    src = gathered(filled(table, HBM), index, rows, width, "uint32")
    dma_transpose(dst=dst, src=src, axes=(1, 0))
    flat = index.T.flatten()[:rows]
    assert np.array_equal(values(dst), table[flat, :width].T)


def test_a_gathered_transpose_refuses() -> None:
    table, zeros = filled(counting(40, 128), HBM), np.zeros((128, 2), np.int64)

    def transpose(index: np.ndarray, rows: int, kind: str = "uint32", **more: Any) -> None:
        dst = ndarray((8, rows), "int16", SBUF)
        dma_transpose(dst=dst, src=gathered(table, index, rows, 8, kind), **more)

    with expect_refusal("dma-transpose", "a multiple of 16 rows, got 24"):
        transpose(zeros, 24)
    with expect_refusal("dma-transpose", "2-D uint32"):
        transpose(zeros, 32, "int32")
    with expect_refusal("dma-transpose", "16 to 128 partitions in 16s"):
        transpose(zeros[:64], 128)
    with expect_refusal("dma-transpose", "16 to 128 partitions in 16s"):
        transpose(zeros[:24, :1], 16)
    with expect_refusal("dma-descriptor", "swdge"):
        transpose(zeros, 32, dge_mode=dge_mode.hwdge)
    with expect_refusal("operand", "for 32 rows"):
        transpose(zeros[:16, :1], 32)
    with expect_refusal("dma-transpose", "elements have 4 bytes"):
        wide = gathered(filled(counting(4, 8, kind=np.int32), HBM), zeros, 16, 8, "uint32")
        dma_transpose(dst=ndarray((8, 16), "int32", SBUF), src=wide)
    transpose(zeros, 32, dge_mode=dge_mode.swdge)
    transpose(zeros[:64, :1], 48)


def test_skipping_some_rows_of_a_transpose_is_refused() -> None:
    table, dst = filled(counting(4, 8), HBM), filled(counting(8, 16) * 0 - 1)
    index = np.zeros((16, 1), np.int64)
    src = gathered(table, index + 4, 16, 8, "uint32")
    dma_transpose(dst=dst, src=src, oob_mode=oob_mode.skip)
    assert (values(dst) == -1).all(), "every row out of range: nothing moves"
    index[3] = 4
    with expect_refusal("bounds", "row 3", kind=IndexError):
        dma_transpose(dst=dst, src=gathered(table, index, 16, 8, "uint32"))
    with expect_refusal("dma-transpose", "skips 1 of 16 rows", "1390"):
        src = gathered(table, index, 16, 8, "uint32")
        dma_transpose(dst=dst, src=src, oob_mode=oob_mode.skip)


def test_a_gathered_4d_source_is_thin() -> None:
    data, index = counting(6, 2, 3, 4), filled(np.arange(16)[:, None] % 6, kind="uint32")

    def view(d1: int, d2: int) -> NkiTensor:
        pattern = [[24, 16], [12, d1], [4, d2], [1, 4]]
        return filled(data, HBM).ap(pattern, vector_offset=index)

    dst = ndarray((4, 2, 1, 16), "int16", SBUF)
    dma_transpose(dst=dst, src=view(2, 1), axes=(3, 1, 2, 0))
    expected = data[np.arange(16) % 6][:, :, 0:1].transpose(3, 1, 2, 0)
    assert np.array_equal(values(dst), expected)
    with expect_refusal("dma-transpose", "dimension 1 or 2 of size 1"):
        dma_transpose(dst=ndarray((4, 2, 3, 16), "int16", SBUF), src=view(2, 3))
