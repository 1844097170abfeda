"""Cycles of the instructions of Tensor, Vector, Scalar and GpSimd.

N is the number of elements per partition, of the operand that has most.
Source: docs/reference/nki.md, section "Hardware numbers"; the formulas are those of the
documentation of SDK 2.26, which later pages dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dslearn.errors import UsageError
from dslearn.sim.cost.geometry import free, in_psum, itemsize, stride_bytes, widest
from dslearn.sim.cost.rates import Rates
from dslearn.sim.memory import PARTITIONS
from dslearn.sim.record import Instruction, Operand

Formula = Callable[[Instruction, Rates, float], float]  # instruction, rates, issue cycles
HALF = ("bfloat16", "float16")


def clock(engine: str, rates: Rates) -> tuple[float, float]:
    """GHz of an engine, and the fewest cycles one of its instructions takes.

    Raises:
        UsageError: no such engine.
    """
    known = {
        "vector": (rates.vector_ghz, rates.vector_issue_cycles),
        "scalar": (rates.scalar_ghz, rates.scalar_issue_cycles),
        "gpsimd": (rates.gpsimd_ghz, rates.gpsimd_start_cycles),
    }
    if engine not in known:
        raise UsageError(f"engine {engine!r}: the cost model has a clock for {', '.join(known)}")
    return known[engine]


def product(one: Instruction, rates: Rates) -> tuple[float, float]:
    """Cycles of nc_matmul, and the part of the array that it takes for so long."""
    d = one.details
    cycles = max(min(rates.pe_issue_cycles, d["m"]), d["n"])
    if any(o.dtype == "float32" for o in one.inputs):
        halved = d["is_transpose"] or d["onezero"]
        cycles *= rates.pe_fp32_factor / (2 if halved else 1)
    rows, columns = d["tile_size"] or (PARTITIONS, PARTITIONS)
    return cycles, rows * columns / PARTITIONS**2


def pe_transpose(one: Instruction, rates: Rates) -> float:
    """Cycles of nc_transpose on the tensor engine."""
    d = one.details
    cycles = max(d["p"], min(rates.pe_issue_cycles, d["f"]))
    wide = itemsize(one.inputs[0]) == 4
    return cycles * (rates.pe_fp32_factor / 2 if wide else 1)


def _simple(name: str) -> Formula:
    """max(issue, each x N) + fixed; on GpSimd start + each x N."""

    def cycles(one: Instruction, rates: Rates, issue: float) -> float:
        table = rates.cycles[name]
        each = table.each * widest(one) * _strided(one, rates)
        return (issue + each if one.engine == "gpsimd" else max(issue, each)) + table.fixed

    return cycles


def _strided(one: Instruction, rates: Rates) -> float:
    steps = [stride_bytes(o) for o in (*one.outputs, *one.inputs)]
    return rates.stride_factor if max(steps, default=0) >= rates.stride_bytes else 1.0


def _fast(name: str) -> Formula:
    """tensor_copy and tensor_scalar: several 16-bit elements per cycle on the Vector engine."""
    simple = _simple(name)

    def cycles(one: Instruction, rates: Rates, issue: float) -> float:
        dst, src = one.outputs[0], one.inputs[0]
        if one.engine != "vector" or not (_half(dst) and _half(src)):
            return simple(one, rates, issue)
        packed = _packed(dst) and _packed(src)
        psum = in_psum(dst) or in_psum(src)
        if psum and not packed:
            return simple(one, rates, issue)
        speed = rates.vector_fast_psum if psum or not packed else rates.vector_fast_sbuf
        return max(issue, widest(one) / speed * _strided(one, rates))

    return cycles


def _half(o: Operand) -> bool:
    return o.dtype in HALF


def _packed(o: Operand) -> bool:
    return free(o) == 1 or stride_bytes(o) == itemsize(o)


def _pairs(name: str, ops: tuple[Any, ...]) -> Formula:
    """Two tiles: half the cycles for some operators when all is 16-bit, or one lies in PSUM."""
    simple = _simple(name)

    def cycles(one: Instruction, rates: Rates, issue: float) -> float:
        operands = (*one.outputs, *one.inputs)
        half = one.details["op"] in ops and all(_half(o) and _packed(o) for o in operands)
        one_psum = name == "tensor_tensor" and sum(map(in_psum, one.inputs)) == 1
        full = simple(one, rates, issue)
        if one.engine == "vector" and (half or one_psum):
            return max(issue, full / 2)
        return full

    return cycles


def _predicated(one: Instruction, rates: Rates, issue: float) -> float:
    full = _simple("tensor_copy_predicated")(one, rates, issue)
    return max(issue, full / 2) if any(map(in_psum, one.inputs)) else full


def _memset(one: Instruction, rates: Rates, issue: float) -> float:
    full = _simple("memset")(one, rates, issue)
    return max(issue, full / 2) if one.engine == "vector" and _half(one.outputs[0]) else full


def _reduced(one: Instruction, rates: Rates, issue: float) -> float:
    full = _simple("tensor_reduce")(one, rates, issue)
    quick = one.details["op"] in ("add", "maximum") and _half(one.inputs[0])
    return max(issue, full / 2) if quick and _half(one.outputs[0]) else full


def _activation(name: str) -> Formula:
    simple = _simple(name)

    def cycles(one: Instruction, rates: Rates, issue: float) -> float:
        reads_out = len(one.outputs) > 1
        return simple(one, rates, issue) + (rates.accumulator_cycles if reads_out else 0)

    return cycles


def _gathered(name: str) -> Formula:
    """start + each x number of elements gathered per partition."""

    def cycles(one: Instruction, rates: Rates, issue: float) -> float:
        d = one.details
        return issue + rates.cycles[name].each * d["n"] * d.get("e", 1)

    return cycles


def _topk(one: Instruction, rates: Rates, issue: float) -> float:
    values = one.outputs[0]
    return issue + rates.cycles["topk"].each * one.details["n"] + free(values)


SIMPLE = (
    "nc_stream_shuffle", "reciprocal", "tensor_scalar_reduce", "tensor_scalar_cumulative",
    "tensor_tensor_scan", "select_reduce", "range_select", "bn_stats", "bn_aggr", "max8",
    "nc_find_index8", "nc_match_replace8", "iota", "affine_select", "nonzero_with_count",
    "tensor_partition_reduce", "sequence_bounds",
)  # fmt: skip
FORMULAS: dict[str, Formula] = {
    **{name: _simple(name) for name in SIMPLE},
    "tensor_copy": _fast("tensor_copy"),
    "tensor_scalar": _fast("tensor_scalar"),
    "tensor_tensor": _pairs("tensor_tensor", ("add", "multiply", "subtract")),
    "scalar_tensor_tensor": _pairs("scalar_tensor_tensor", (("subtract", "multiply"),)),
    "tensor_copy_predicated": _predicated,
    "memset": _memset,
    "tensor_reduce": _reduced,
    "activation": _activation("activation"),
    "activation_reduce": _activation("activation_reduce"),
    "local_gather": _gathered("local_gather"),
    "nc_n_gather": _gathered("nc_n_gather"),
    "topk": _topk,
}
