"""dma_copy with runtime addresses: gathers, scatters, skipped rows, registers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslearn.sim.isa.dma import dma_copy
from dslearn.sim.isa.enums import dge_mode, oob_mode
from dslearn.sim.isa.registers import register_alloc
from dslearn.sim.language.allocate import ndarray
from tests.support.rows import column, rows_of
from tests.support.sim import HBM, SBUF, expect_refusal, filled, values


@given(st.lists(st.integers(0, 19), min_size=1, max_size=128), st.integers(0, 2), st.data())
def test_a_gather_is_fancy_indexing(index: list[int], start: int, data: Any) -> None:
    kind = data.draw(st.sampled_from(["int32", "uint32"]))
    table = np.arange(20 * 5, dtype=np.float32).reshape(20, 5)
    dst = ndarray((len(index), 3), "bfloat16", SBUF)
    dma_copy(dst=dst, src=rows_of(filled(table, HBM), column(index, kind), start, 3))
    expected = table[np.array(index), start : start + 3].astype(ml_dtypes.bfloat16)
    assert np.array_equal(values(dst), expected)


@given(st.permutations(range(9)), st.integers(1, 9))
def test_a_scatter_is_fancy_assignment(order: list[int], count: int) -> None:
    index = order[:count]
    new = -np.arange(count * 4, dtype=np.float32).reshape(count, 4)
    expected = np.arange(36, dtype=np.float32).reshape(9, 4)
    table = filled(expected, HBM)
    dma_copy(dst=rows_of(table, column(index)), src=filled(new))
    expected[index] = new
    assert np.array_equal(values(table), expected)


def test_a_gather_walks_three_dimensions() -> None:
    table = np.arange(6 * 4 * 8, dtype=np.int32).reshape(6, 4, 8)
    index, dst = column([5, 0, 3]), ndarray((3, 2, 4), "int32", SBUF)
    view = filled(table, HBM).ap([[32, 3], [16, 2], [2, 4]], offset=8, vector_offset=index)
    dma_copy(dst=dst, src=view)
    assert np.array_equal(values(dst), table[[5, 0, 3], 1::2, ::2])
    dma_copy(dst=dst, src=filled(table, HBM).vector_select(0, index)[:, 0:2, 0:4])
    assert np.array_equal(values(dst), table[[5, 0, 3], 0:2, 0:4])


def test_negative_steps_read_backwards() -> None:
    table = np.arange(12, dtype=np.float32).reshape(3, 4)
    hbm, dst = filled(table, HBM), ndarray((2, 4), "float32", SBUF)
    dma_copy(dst=dst, src=hbm.ap([[4, 2], [-1, 4]], offset=3, vector_offset=column([2, 0])))
    assert np.array_equal(values(dst), table[[2, 0], ::-1])
    with expect_refusal("bounds", kind=IndexError):
        hbm.ap([[4, 3], [-1, 4]], offset=2)


def test_rows_out_of_range_are_refused_or_skipped() -> None:
    table = np.arange(12, dtype=np.float32).reshape(3, 4)
    index, hbm = column([1, 2**31 - 1, -1, 2]), filled(table, HBM)
    dst = filled(np.full((4, 4), 9, np.float32))
    with expect_refusal("bounds", "row 1", "oob_mode.skip", kind=IndexError):
        dma_copy(dst=dst, src=rows_of(hbm, index))
    dma_copy(dst=dst, src=rows_of(hbm, index), oob_mode=oob_mode.skip)
    assert values(dst)[:, 0].tolist() == [4, 9, 9, 8]
    dma_copy(dst=rows_of(hbm, index), src=dst, oob_mode=oob_mode.skip)
    assert np.array_equal(values(hbm), table)


def test_skipped_rows_stay_unwritten_and_need_nothing_written() -> None:
    hbm = ndarray((3, 4), "float32", HBM)
    dma_copy(dst=hbm[1:2], src=filled(np.ones((1, 4), np.float32)))
    dst = ndarray((2, 4), "float32", SBUF)
    dma_copy(dst=dst, src=rows_of(hbm, column([1, 3])), oob_mode=oob_mode.skip)
    assert (values(dst[0:1]) == 1).all()
    with expect_refusal("uninitialised", "4 of 4"):
        values(dst[1:2])
    with expect_refusal("uninitialised", "4 of 8"):
        dma_copy(dst=dst, src=rows_of(hbm, column([1, 0])))


def test_a_skipped_runtime_offset_moves_nothing() -> None:
    hbm, dst = (
        filled(np.arange(12, dtype=np.float32).reshape(3, 4), HBM),
        filled([[0] * 4], kind="float32"),
    )
    row = register_alloc(3)
    view = hbm.ap([[4, 1], [1, 4]], scalar_offset=row, indirect_dim=0)
    with expect_refusal("bounds", kind=IndexError):
        dma_copy(dst=dst, src=view)
    dma_copy(dst=dst, src=view, oob_mode=oob_mode.skip)
    assert (values(dst) == 0).all()
    row.write(2)
    dma_copy(dst=dst, src=view, oob_mode=oob_mode.skip)
    assert values(dst)[0].tolist() == [8, 9, 10, 11]
    with expect_refusal("operand", "oob_mode.skip without an indirect operand"):
        dma_copy(dst=dst, src=hbm[0:1], oob_mode=oob_mode.skip)


def test_descriptor_modes_of_runtime_addresses() -> None:
    hbm, dst = filled(np.ones((3, 4), np.float32), HBM), ndarray((2, 4), "float32", SBUF)
    gather = rows_of(hbm, column([0, 2]))
    for wrong in (dge_mode.hwdge, dge_mode.none):
        with expect_refusal("dma-descriptor", "swdge"):
            dma_copy(dst=dst, src=gather, dge_mode=wrong)
    handle = dma_copy(dst=dst, src=gather, dge_mode=dge_mode.swdge)
    assert handle._instruction.details["dge"] == "swdge"
    moving = hbm.ap([[4, 2], [1, 4]], scalar_offset=register_alloc(1))
    with expect_refusal("dma-descriptor", "hwdge or swdge"):
        dma_copy(dst=dst, src=moving, dge_mode=dge_mode.none)
    dma_copy(dst=dst, src=moving, dge_mode=dge_mode.hwdge)
    assert values(dst).sum() == 8


def test_offset_tiles_are_checked() -> None:
    hbm, dst = filled(np.ones((3, 4), np.float32), HBM), ndarray((2, 4), "float32", SBUF)
    with expect_refusal("operand", "int32 or uint32"):
        rows_of(hbm, column([0, 1], "float32"))
    with expect_refusal("operand", "one index per partition"):
        dma_copy(dst=dst, src=hbm.ap([[4, 2], [1, 4]], vector_offset=column([0, 1, 2])))
    with expect_refusal("view", "indirect already"):
        rows_of(hbm, column([0, 1]))[0:1]
    with expect_refusal("region", "HBM"):
        filled(np.ones((3, 4), np.float32)).ap([[4, 3], [1, 4]], vector_offset=column([0, 1, 2]))
    with expect_refusal("arguments", "not both", kind=TypeError):
        zero = register_alloc(0)
        hbm.ap([[4, 2], [1, 4]], scalar_offset=zero, vector_offset=column([0, 1]))


def test_duplicate_rows_of_a_scatter_warn_when_they_differ() -> None:
    hbm, same = filled(np.zeros((3, 2), np.float32), HBM), filled(np.ones((2, 2), np.float32))
    dma_copy(dst=rows_of(hbm, column([1, 1])), src=same)
    with pytest.warns(RuntimeWarning, match="any of them may stay"):
        new = filled(np.array([[1, 2], [3, 4]], np.float32))
        dma_copy(dst=rows_of(hbm, column([1, 1])), src=new)
    assert values(hbm)[1].tolist() == [3, 4]


def test_a_destination_holds_each_element_once() -> None:
    dst, src = ndarray((2, 4), "float32", SBUF), filled(np.ones((2, 4), np.float32), HBM)
    with expect_refusal("view", "overlaps itself"):
        dma_copy(dst=dst.ap([[4, 2], [1, 2], [1, 2]]), src=src)
    with expect_refusal("view", "broadcast view"):
        dma_copy(dst=dst.ap([[4, 2], [0, 4]]), src=src)
    dma_copy(dst=dst.ap([[4, 2], [1, 2], [2, 2]]), src=src)
    assert values(dst).sum() == 8


def test_a_select_by_register_is_a_row() -> None:
    table = np.arange(24, dtype=np.float32).reshape(3, 2, 4)
    hbm, row = filled(table, HBM), filled(np.array([[2]], np.int32))
    dst = ndarray((2, 4), "float32", SBUF)
    dma_copy(dst=dst, src=hbm.select(0, row))
    assert np.array_equal(values(dst), table[2])
    dma_copy(dst=dst, src=hbm.select(0, register_alloc(1)))
    assert np.array_equal(values(dst), table[1])


@given(st.integers(0, 2), st.integers(0, 3))
def test_indirect_dim_counts_elements_of_the_base_shape(dim: int, index: int) -> None:
    table = np.arange(4 * 5 * 6, dtype=np.int32).reshape(4, 5, 6)
    view = filled(table, HBM).ap([[1, 2]], scalar_offset=register_alloc(index), indirect_dim=dim)
    dst = ndarray((1, 2), "int32", SBUF)
    dma_copy(dst=dst, src=view)
    assert values(dst)[0, 0] == table.reshape(-1)[index * (30, 6, 1)[dim]]


def test_one_copy_may_gather_and_scatter() -> None:
    table, old = np.arange(12, dtype=np.float32).reshape(4, 3), np.zeros((4, 3), np.float32)
    src, dst = filled(table, HBM), filled(old, HBM)
    sources, targets = column([3, 9, 1]), column([0, 1, -1])
    moved = rows_of(dst, targets)
    dma_copy(dst=moved, src=rows_of(src, sources), oob_mode=oob_mode.skip)
    old[0] = table[3]
    assert np.array_equal(values(dst), old)
