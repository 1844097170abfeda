"""dma_compute: sums, scatter-add, gather-add."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dslearn.sim.isa.dma import dma_compute
from dslearn.sim.isa.enums import oob_mode
from dslearn.sim.isa.registers import register_alloc
from dslearn.sim.language.allocate import ndarray
from dslearn.sim.language.tokens import TOKENS
from tests.support.rows import column, rows_of
from tests.support.sim import HBM, SBUF, expect_refusal, filled, values

ADD = TOKENS["add"]


@given(st.integers(1, 16), st.sampled_from(["float32", "bfloat16", "int32"]))
def test_dma_compute_sums_in_fp32_from_the_left(count: int, kind: str) -> None:
    rng = np.random.default_rng(count)
    terms = [rng.integers(-50, 50, (3, 5)).astype(np.float32) / 7 for _ in range(count)]
    dst, total = ndarray((3, 5), kind, SBUF), np.zeros((3, 5), np.float32)
    for term in terms:
        total = total + term
    dma_compute(dst=dst, srcs=[filled(t, HBM) for t in terms], reduce_op=ADD)
    expected = np.rint(total) if kind == "int32" else total.astype(values(dst).dtype)
    assert np.array_equal(values(dst).astype(np.float32), expected.astype(np.float32))


def test_scatter_add_and_gather_add() -> None:
    table, new = np.arange(12, dtype=np.float32).reshape(4, 3), np.ones((2, 3), np.float32)
    hbm, tile, index = filled(table, HBM), filled(new), column([3, 0])
    at = rows_of(hbm, index)
    dma_compute(dst=at, srcs=[rows_of(hbm, index), tile], reduce_op=ADD)
    table[[3, 0]] += 1
    assert np.array_equal(values(hbm), table)
    dma_compute(dst=tile, srcs=[at, tile], reduce_op=ADD, scales=[1.0, 1.0])
    assert np.array_equal(values(tile), 1 + table[[3, 0]])
    far = rows_of(hbm, column([1, 4]))
    with expect_refusal("bounds", kind=IndexError):
        dma_compute(dst=tile, srcs=[tile, far], reduce_op=ADD)
    before = values(tile)
    dma_compute(dst=tile, srcs=[tile, far], reduce_op=ADD, oob_mode=oob_mode.skip)
    assert np.array_equal(values(tile), before + [table[1], [0, 0, 0]])


def test_rows_that_are_added_to_are_unique() -> None:
    hbm, tile = filled(np.zeros((4, 3), np.float32), HBM), filled(np.ones((2, 3), np.float32))
    twice = rows_of(hbm, column([1, 1]))
    with expect_refusal("dma-unique", "named 2 times"):
        dma_compute(dst=twice, srcs=[twice, tile], reduce_op=ADD)
    with expect_refusal("dma-unique", "unique_indices=False"):
        dma_compute(dst=tile, srcs=[tile, tile], reduce_op=ADD, unique_indices=False)
    out = rows_of(hbm, column([7, 7]))
    dma_compute(dst=out, srcs=[out, tile], reduce_op=ADD, oob_mode=oob_mode.skip)
    assert (values(hbm) == 0).all()


def test_dma_compute_refuses() -> None:
    hbm, tile = filled(np.zeros((4, 3), np.float32), HBM), filled(np.ones((4, 3), np.float32))
    with expect_refusal("operand", "only nl.add"):
        dma_compute(dst=tile, srcs=[tile], reduce_op=TOKENS["multiply"])
    with expect_refusal("operand", "1.0 each"):
        dma_compute(dst=tile, srcs=[tile, hbm], reduce_op=ADD, scales=[1.0, 0.5])
    with expect_refusal("operand", "of 17 srcs"):
        dma_compute(dst=tile, srcs=[tile] * 17, reduce_op=ADD)
    with expect_refusal("shape", "same number of elements"):
        dma_compute(dst=tile, srcs=[tile[0:2]], reduce_op=ADD)
    moving = hbm.ap([[3, 4], [1, 3]], scalar_offset=register_alloc(0))
    with expect_refusal("dma-descriptor", "scalar offset"):
        dma_compute(dst=tile, srcs=[tile, moving], reduce_op=ADD)
    rows = rows_of(hbm, column([0, 1, 2, 3]))
    with expect_refusal("operand", "two srcs"):
        dma_compute(dst=tile, srcs=[tile, rows, hbm], reduce_op=ADD)
    with expect_refusal("operand", "two srcs"):
        dma_compute(dst=tile, srcs=[rows, hbm], reduce_op=ADD)
    dma_compute(dst=tile, srcs=[tile, tile, hbm], reduce_op=ADD)
    assert (values(tile) == 2).all()
