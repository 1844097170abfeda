"""Where a check has several conditions, each alone is enough to refuse (tools/mutate_checks.py)."""

from __future__ import annotations

from typing import Any

import pytest

from dslearn.sim.isa.copies import memset
from dslearn.sim.isa.dma import dma_compute, dma_copy
from dslearn.sim.isa.dma_transpose import dma_transpose
from dslearn.sim.isa.enums import matmul_perf_mode as modes
from dslearn.sim.isa.groups import sequence_bounds, topk
from dslearn.sim.isa.matmul import nc_matmul
from dslearn.sim.isa.patterns import iota
from dslearn.sim.isa.reductions import tensor_reduce
from dslearn.sim.isa.registers import register_alloc
from dslearn.sim.isa.search import max8
from dslearn.sim.isa.shuffle import nc_stream_shuffle
from dslearn.sim.isa.tensor_scalar import tensor_scalar
from dslearn.sim.language.elementwise import binary
from dslearn.sim.language.move import broadcast_to
from dslearn.sim.language.programs import num_programs
from tests.support.isa import empty, hbm, nl, register, rows, tile
from tests.support.sim import PSUM, expect_refusal

INSTRUCTIONS = [
    (
        "an assignment of another shape with as many elements",
        lambda: tile(4, 4, 4).__setitem__(slice(None), tile(4, 16)), "shape", "assignment of",
    ),
    (
        "five strides",
        lambda: memset(
            empty((4, 1024)).ap([[1024, 4], [512, 2], [128, 2], [32, 2], [8, 2], [2, 2]]), 0.0
        ),
        "tile-rank", "5 free strides",
    ),
    (
        "packed quadruples",
        lambda: tensor_scalar(tile(4, 4), empty((4, 4), "float8_e5m2_x4"), nl.add, 1.0),
        "dtype", "float8_e5m2_x4",
    ),
    (
        "a register as a scalar",
        lambda: tensor_scalar(tile(4, 4), tile(4, 4), nl.add, register()), "register", "store it",
    ),
    (
        "a truth value as bits",
        lambda: tensor_scalar(rows(4, 4), rows(4, 4), nl.bitwise_and, True), "operand", "True",
    ),
    (
        "two columns of rows in a copy",
        lambda: dma_copy(
            rows(3, 4), hbm(5, 4).ap([[4, 3], [1, 4]], vector_offset=rows(3, 2))
        ),
        "operand", "one index per partition",
    ),
    (
        "row indices beside each other",
        lambda: dma_copy(
            rows(3, 4), hbm(5, 4).ap([[4, 3], [1, 4]], vector_offset=rows(1, 3))
        ),
        "operand", "one index per partition",
    ),
    ("two columns of rows in a sum", lambda: _scatter(rows(3, 2), 1), "operand", "one index per"),
    ("three terms of a scatter", lambda: _scatter(rows(1, 1), 2), "operand", "two srcs"),
    (
        "a transpose of five dimensions",
        lambda: dma_transpose(rows(2, 2, 2, 2, 2), hbm(2, 2, 2, 2, 2)), "dma-transpose", "by rank",
    ),
    (
        "fewer than eight candidates",
        lambda: topk(
            empty((32, 4), "bfloat16"), empty((32, 4), "uint32"), tile(32, 4, kind="bfloat16"), 7
        ),
        "operand", "n=7, k=4",
    ),
    (
        "segments on two partitions",
        lambda: sequence_bounds(empty((1, 2, 8)), tile(2, 8)), "shape", "segment_ids (2, 8)",
    ),
    ("a product of quadruples", lambda: _product("float8_e5m2_x4"), "platform", "trn3"),
    ("a pair of three", lambda: _double(4, 3, 6), "shape", "the pair first"),
    ("a pair without columns", lambda: _double(8, 2), "shape", "the pair first"),
    (
        "a place without a size",
        lambda: _product("bfloat16", tile_position=(0, 0)), "operand", "or neither",
    ),
    (
        "a place of one number",
        lambda: _product("bfloat16", tile_position=(0,), tile_size=(64, 64)),
        "operand", "tile_size",
    ),
    ("a pattern that is no list", lambda: iota(empty((4, 4)), 4), "arguments", "[[step, count]"),
    (
        "counts below one",
        lambda: iota(empty((4, 4)), [[1, -2], [1, -2]]), "shape", "must count the 4",
    ),
    (
        "an axis beyond the last",
        lambda: tensor_reduce(empty((4, 1)), nl.add, tile(4, 4), 3), "operand", "axis=3",
    ),
    (
        "every axis",
        lambda: tensor_reduce(empty((4, 1)), nl.add, tile(4, 4), (0, 1)), "operand", "axis=(0, 1)",
    ),
    ("a truth value in a register", lambda: register_alloc(True), "arguments", "True"),
    (
        "eight in four dimensions",
        lambda: max8(empty((4, 2, 2, 2)), tile(4, 16)), "shape", "must be (4, 8)",
    ),
    (
        "a quadrant that a wide source does not reach",
        lambda: nc_stream_shuffle(empty((128, 4))[32:64], tile(128, 4), [0] * 32),
        "start-partition", "dst starts at partition 32",
    ),
    (
        "a quadrant of a source that a wide result does not reach",
        lambda: nc_stream_shuffle(empty((128, 4)), tile(128, 4)[32:64], [0] * 32),
        "start-partition", "src starts at partition 32",
    ),
    (
        "a maximum of magnitudes",
        lambda: binary("abs_max", tile(4, 4), tile(4, 4), None), "platform", "nl.maximum of nl.abs",
    ),
    ("more dimensions", lambda: broadcast_to(tile(4, 1), (4, 1, 8)), "shape", "nl.broadcast_to"),
    ("two for eight", lambda: broadcast_to(tile(4, 2), (4, 8)), "shape", "nl.broadcast_to"),
    ("a second grid axis", lambda: num_programs(1), "arguments", "axis 1"),
    ("two grid axes", lambda: num_programs((0, 1)), "arguments", "axis 1"),
]  # fmt: skip


def _scatter(index: Any, copies: int) -> None:
    view = hbm(5, 4).ap([[4, index.shape[0]], [1, 4]], vector_offset=index)
    dma_compute(view, [view] * copies + [rows(index.shape[0], 4)], nl.add)


def _product(kind: str, **options: Any) -> None:
    moving = empty((64, 8), kind) if kind.endswith("_x4") else tile(64, 8, kind=kind)
    nc_matmul(empty((8, 8), region=PSUM), moving, moving, accumulate=False, **options)


def _double(*shape: int) -> None:
    codes = tile(*shape, kind="float8_e4m3")
    columns = shape[2] if len(shape) == 3 else 1
    nc_matmul(
        empty((columns, columns), region=PSUM), codes, codes, False, perf_mode=modes.double_row
    )


@pytest.mark.parametrize(
    "call, rule, words", [pytest.param(*case, id=name) for name, *case in INSTRUCTIONS]
)
def test_one_wrong_thing_is_enough(call, rule, words):
    with expect_refusal(rule, words):
        call()
