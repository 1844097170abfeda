"""Every operand of every computing instruction is checked: partitions, elements, dtype.

A call that is legal is made with one operand wrong at a time, so that no check stands for another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dslearn.sim.isa import (
    activation,
    copies,
    dma,
    dma_transpose,
    elementwise,
    gathers,
    groups,
    patterns,
    reductions,
    scans,
    search,
    select,
    shuffle,
    tensor_scalar,
    transpose,
)  # fmt: skip
from dslearn.sim.isa.enums import reduce_cmd
from dslearn.sim.program import current
from dslearn.sim.rules import KernelError
from tests.support.isa import nl
from tests.support.sim import HBM, PSUM, SBUF, filled

Operand = tuple[tuple[int, ...], str]  # shape, dtype
F, B = "float32", "bfloat16"
ROW, TWO, ONE = ((32, 16), F), ((32, 8), F), ((32, 1), F)
PLACES: Operand = ((32, 8), "uint32")
UNARY = {"dst": ROW, "data": ROW}

# Function, its tensors, its other arguments.
CALLS: list[tuple[Callable[..., Any], dict[str, Operand], dict[str, Any]]] = [
    (copies.tensor_copy, {"dst": ROW, "src": ROW}, {}),
    (copies.tensor_copy_predicated, {"dst": ROW, "src": ROW, "predicate": ((32, 16), "uint8")}, {}),
    (elementwise.reciprocal, UNARY, {}),
    (elementwise.tensor_tensor, {"dst": ROW, "data1": ROW, "data2": ROW}, {"op": nl.add}),
    (tensor_scalar.tensor_scalar, UNARY, {"op0": nl.add, "operand0": 1.0}),
    (tensor_scalar.tensor_scalar, {**UNARY, "operand0": ONE}, {"op0": nl.add}),
    (
        tensor_scalar.scalar_tensor_tensor,
        {**UNARY, "operand1": ROW},
        {"op0": nl.add, "operand0": 1.0, "op1": nl.add},
    ),
    (
        tensor_scalar.scalar_tensor_tensor,
        {**UNARY, "operand0": ((32, 1), B), "operand1": ROW},
        {"op0": nl.add, "op1": nl.add},
    ),
    (reductions.tensor_reduce, {"dst": ONE, "data": ROW}, {"op": nl.add, "axis": 1}),
    (
        reductions.tensor_partition_reduce,
        {"dst": ((1, 16), F), "data": ROW},
        {"op": nl.add},
    ),
    (
        reductions.tensor_partition_reduce,
        {"dst": ((1, 16), "int32"), "data": ((32, 16), "int32")},
        {"op": nl.bitwise_or},
    ),
    (
        reductions.tensor_scalar_reduce,
        {**UNARY, "reduce_res": ONE},
        {"op0": nl.add, "operand0": 1.0, "reduce_op": nl.add},
    ),
    (
        scans.tensor_tensor_scan,
        {"dst": ROW, "data0": ROW, "data1": ROW, "initial": ((32, 1), B)},
        {"op0": nl.add, "op1": nl.add},
    ),
    (
        scans.tensor_scalar_cumulative,
        {"dst": ROW, "src": ROW},
        {"op0": nl.add, "op1": nl.add, "imm0": 1.0},
    ),
    (scans.bn_stats, {"dst": ((32, 6), F), "data": ROW}, {}),
    (scans.bn_aggr, {"dst": ((32, 2), F), "data": ((32, 6), F)}, {}),
    (search.max8, {"dst": TWO, "src": ROW}, {}),
    (search.nc_find_index8, {"dst": PLACES, "data": ROW, "vals": TWO}, {}),
    (
        search.nc_match_replace8,
        {"dst": ROW, "data": ROW, "vals": TWO, "dst_idx": PLACES},
        {"imm": 0.0},
    ),
    (
        select.select_reduce,
        {"dst": ROW, "predicate": ((32, 16), "uint8"), "on_true": ROW, "reduce_res": ONE},
        {"on_false": 0.0, "reduce_cmd": reduce_cmd.reset_reduce},
    ),
    (
        select.range_select,
        {"dst": ROW, "on_true_tile": ROW, "bound0": ONE, "bound1": ONE, "reduce_res": ONE},
        {"comp_op0": nl.greater_equal, "comp_op1": nl.less},
    ),
    (patterns.iota, {"dst": ROW}, {"pattern": [[1, 16]]}),
    (
        patterns.affine_select,
        {"dst": ROW, "on_true_tile": ROW},
        {"pattern": [[1, 16]], "channel_multiplier": 0, "on_false_value": 0.0},
    ),
    (
        gathers.local_gather,
        {"dst": ((32, 16), F), "src_buffer": ROW, "index": ((32, 1), "uint16")},
        {},
    ),
    (gathers.nc_n_gather, {"dst": TWO, "data": ROW, "indices": PLACES}, {}),
    (
        groups.topk,
        {"src": ((32, 4), B), "val_dst": ((32, 8), B), "idx_dst": PLACES},
        {"n": 64},
    ),
    (groups.nonzero_with_count, {"dst": ((32, 17), "int32"), "src": ROW}, {}),
    (groups.sequence_bounds, {"dst": ((1, 2, 16), F), "segment_ids": ((1, 16), F)}, {}),
    (shuffle.nc_stream_shuffle, {"dst": ROW, "src": ROW}, {"shuffle_mask": [0] * 32}),
    (activation.activation, {**UNARY, "bias": ONE, "scale": ONE}, {"op": nl.exp}),
    (
        activation.activation_reduce,
        {**UNARY, "reduce_res": ONE},
        {"op": nl.exp, "reduce_op": nl.add},
    ),
    (transpose.nc_transpose, {"dst": ((16, 32), F), "data": ROW}, {}),
    (dma_transpose.dma_transpose, {"dst": ((16, 32), F), "src": ROW}, {}),
]
# A reduction takes any columns, a gather and a search read any, a shuffle any partitions.
ANY_PARTITIONS = {("nc_stream_shuffle", "dst"), ("nc_stream_shuffle", "src"),
                  ("tensor_partition_reduce", "data"), ("iota", "dst")}  # fmt: skip
ANY_COLUMNS = {("local_gather", "src_buffer"), ("nc_n_gather", "data"), ("max8", "src"),
               ("nc_find_index8", "data"), ("bn_stats", "data"),
               ("tensor_reduce", "data")}  # fmt: skip


def operands(free: set[tuple[str, str]] = frozenset()) -> Any:
    """A case per operand of each call, but those that are `free`."""
    cases = [
        pytest.param(function, tensors, others, name, id=f"{function.__name__}-{number}-{name}")
        for number, (function, tensors, others) in enumerate(CALLS)
        for name in tensors
        if (function.__name__, name) not in free
    ]
    return pytest.mark.parametrize("function, tensors, others, name", cases)


def made(tensors: dict[str, Operand]) -> dict[str, Any]:
    """Tiles of ones, of zeros where they index."""
    return {
        name: filled(np.full(shape, kind[0] != "u"), SBUF, kind)
        for name, (shape, kind) in tensors.items()
    }


def expect_wrong(function, given, others, rules):
    before = len(current().instructions)
    with pytest.raises(KernelError) as caught:
        function(**given, **others)
    assert caught.value.rule in rules, str(caught.value)  # type: ignore[attr-defined]
    assert function.__name__ in str(caught.value)
    assert len(current().instructions) == before, "nothing was executed"


@pytest.mark.parametrize("function, tensors, others", CALLS)
def test_the_call_is_legal_as_it_stands(function, tensors, others):
    function(**made(tensors), **others)
    assert current().instructions[-1].name == function.__name__


@operands(ANY_PARTITIONS)
def test_partitions_are_checked(function, tensors, others, name):
    (rows, *rest), kind = tensors[name]
    changed = {**tensors, name: ((2 * rows, *rest), kind)}
    expect_wrong(function, made(changed), others, ("shape", "operand", "start-partition"))


@operands(ANY_PARTITIONS | {("sequence_bounds", "dst"), ("sequence_bounds", "segment_ids")})
def test_the_same_elements_in_other_partitions_are_no_match(function, tensors, others, name):
    (rows, columns), kind = tensors[name]
    other = (rows // 2, 2 * columns) if rows > 1 else (2, columns // 2)
    changed = {**tensors, name: (other, kind)}
    expect_wrong(function, made(changed), others, ("shape", "operand"))


@operands(ANY_COLUMNS)
def test_elements_per_partition_are_checked(function, tensors, others, name):
    (*rest, columns), kind = tensors[name]
    changed = {**tensors, name: ((*rest, columns - 1 if columns > 2 else columns + 1), kind)}
    expect_wrong(function, made(changed), others, ("shape", "operand"))


@operands()
def test_formats_of_trn3_are_refused(function, tensors, others, name):
    changed = {**tensors, name: (tensors[name][0], "float8_e4m3fn")}
    expect_wrong(function, made(changed), others, ("dtype", "operand"))


@operands({("dma_transpose", "dst"), ("dma_transpose", "src")})
def test_hbm_is_no_operand_of_an_engine(function, tensors, others, name):
    given = {**made(tensors), name: filled(np.ones(tensors[name][0]), HBM, tensors[name][1])}
    expect_wrong(function, given, others, ("region",))


def test_a_sum_by_dma_checks_every_source():
    dst, one = filled(np.zeros((4, 8)), SBUF, F), filled(np.ones((4, 8)), SBUF, F)
    for wrong, rule in (
        (filled(np.ones((4, 7)), SBUF, F), "shape"),
        (filled(np.ones((4, 8)), SBUF, "float8_e4m3fn"), "dtype"),
        (filled(np.ones((4, 8)), PSUM, F), "region"),
    ):
        with pytest.raises(KernelError) as caught:
            dma.dma_compute(dst, [one, wrong], nl.add)
        assert caught.value.rule == rule  # type: ignore[attr-defined]
    dma.dma_compute(dst, [one, one], nl.add)
