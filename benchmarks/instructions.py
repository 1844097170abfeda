"""One small call of every instruction that the stand-in simulates, for benchmarks/simulator.py.

Tiles have 128 partitions of 64 elements, unless the instruction wants another shape: a matrix of
64 x 64 sums for the Tensor engine, (128, 1) for one scalar per partition. Values are drawn from
-1.5 to 1.5, or 0.5 to 1.5 for functions that need positive numbers and for long products: CPUs
take many times longer over denormal ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import dslearn.kernels  # noqa: F401 - before nki: decides who runs it
from dslearn.sim.access import store
from dslearn.sim.dtypes import INTEGERS, NUMPY
from dslearn.sim.numerics.activations import FUNCTIONS
from dslearn.sim.numerics.alu import OPS

# isort: split
import nki.isa as nisa
import nki.language as nl

P, F = 128, 64
Call = Callable[[], object]
Cases = Iterator[tuple[str, Call]]
POSITIVE = ("log", "sqrt", "rsqrt", "reciprocal", "power", "multiply")
REDUCTIONS = ("add", "multiply", "maximum", "minimum")


def filled(values: Any, kind: str = "float32", buffer: Any = nl.sbuf) -> Any:
    """A tile that holds these numbers."""
    out = nl.ndarray(shape=values.shape, dtype=getattr(nl, kind), buffer=buffer)
    store(out, values.astype(NUMPY[kind]))
    return out


def tile(kind: str = "float32", shape: tuple[int, ...] = (P, F), **options: Any) -> Any:
    """A tile of random numbers; integers are 0 to 31."""
    draw = np.random.default_rng(len(shape))
    whole = kind in INTEGERS
    values = draw.integers(0, 32, shape) if whole else draw.uniform(-1.5, 1.5, shape)
    return filled(values, kind, **options)


def positive(columns: int = F) -> Any:
    """A tile of numbers from 0.5 to 1.5."""
    return filled(np.random.default_rng(0).uniform(0.5, 1.5, (P, columns)))


def column() -> Any:
    """One scalar per partition."""
    return positive(1)


def data_movement() -> Cases:
    """DMA and copies."""
    out, a, words, mask = tile(), tile(), tile("bfloat16"), tile("uint8")
    hbm = tile(buffer=nl.private_hbm)
    order = filled(np.random.default_rng(0).permutation(P)[:, None], "uint32")
    rows = hbm.ap(pattern=[[F, P], [1, F]], vector_offset=order)
    yield "dma_copy", partial(nisa.dma_copy, out, hbm)
    yield "dma_copy, cast", partial(nisa.dma_copy, words, hbm)
    yield "dma_copy, gather", partial(nisa.dma_copy, out, rows)
    yield "dma_copy, scatter", partial(nisa.dma_copy, rows, a)
    yield "dma_compute", partial(nisa.dma_compute, out, [a, hbm], nl.add)
    yield "dma_compute, scatter", partial(nisa.dma_compute, rows, [rows, a], nl.add)
    yield "dma_transpose", partial(nisa.dma_transpose, tile("bfloat16", (F, P)), words)
    yield "memset", partial(nisa.memset, out, 1.0)
    for kind in (k for k in NUMPY if not k.endswith(("_x4", "e4m3fn", "e8m0fnu"))):
        yield f"tensor_copy to {kind}", partial(nisa.tensor_copy, tile(kind), a)
        yield f"tensor_copy from {kind}", partial(nisa.tensor_copy, out, tile(kind))
    yield "tensor_copy_predicated", partial(nisa.tensor_copy_predicated, out, a, mask)
    neighbours = [i ^ 1 for i in range(32)]
    yield "nc_stream_shuffle", partial(nisa.nc_stream_shuffle, out, a, neighbours)


def tensor_engine() -> Cases:
    """Products and transposes."""
    sums, turned = (tile("float32", (F, n), buffer=nl.psum) for n in (F, P))
    anew = partial(nisa.nc_matmul, accumulate=False)
    for kind in ("bfloat16", "float32", "float8_e4m3"):
        yield f"nc_matmul {kind}", partial(anew, sums, tile(kind), tile(kind))
    x, pairs = tile("bfloat16"), tile("float8_e4m3", (P, 2, F))
    yield "nc_matmul, accumulate", partial(nisa.nc_matmul, sums, x, x, accumulate=True)
    double = nisa.matmul_perf_mode.double_row
    yield "nc_matmul, double_row", partial(anew, sums, pairs, pairs, perf_mode=double)
    a, identity = tile(), filled(np.eye(P))
    yield "nc_matmul, is_transpose", partial(anew, turned, a, identity, is_transpose=True)
    yield "nc_transpose", partial(nisa.nc_transpose, turned, a)
    small, flipped = (tile("float32", (32, 32)) for _ in "ab")
    yield "nc_transpose, Vector", partial(nisa.nc_transpose, flipped, small, nisa.vector_engine)


def elementwise() -> Cases:
    """Every ALU operator, on two tiles, on a tile and scalars, and as a reduction."""
    for name, op in OPS.items():
        if op.trn3_only:
            continue
        kind, token = "int32" if op.kind == "bitvec" else "float32", getattr(nl, name)
        out, other, total = tile(kind), tile(kind), tile(kind, (P, 1))
        data = positive() if name in POSITIVE else tile(kind)
        if op.arity == 2:
            yield f"tensor_tensor {name}", partial(nisa.tensor_tensor, out, data, other, token)
        if name != "power":  # GpSimd's, and only together with rsqrt
            operand = None if op.arity == 1 else 1 if op.kind == "bitvec" else column()
            yield f"tensor_scalar {name}", partial(nisa.tensor_scalar, out, data, token, operand)
        if op.reduces is not None:
            yield f"tensor_reduce {name}", partial(nisa.tensor_reduce, total, token, data, 1)
    out, a, whole, half = tile(), tile(), tile("int32"), tile("bfloat16")
    yield "tensor_tensor bfloat16", partial(nisa.tensor_tensor, half, half, half, nl.add)
    yield "tensor_tensor int32", partial(nisa.tensor_tensor, whole, whole, whole, nl.add)
    scaled = partial(nisa.tensor_scalar, op0=nl.multiply, op1=nl.add)
    yield "tensor_scalar, two stages", partial(scaled, out, a, operand0=column(), operand1=1.0)
    yield "tensor_scalar int32", partial(scaled, whole, whole, operand0=3, operand1=5)
    both = partial(nisa.scalar_tensor_tensor, out, a, nl.multiply, column(), nl.multiply, tile())
    yield "scalar_tensor_tensor", both
    yield "reciprocal", partial(nisa.reciprocal, out, positive())


def activations() -> Cases:
    """Every function of the Scalar engine, and what may surround one."""
    out, a = tile(), tile()
    for name in FUNCTIONS:
        data = positive() if name in POSITIVE else a
        yield f"activation {name}", partial(nisa.activation, out, getattr(nl, name), data)
    around = {"bias": column(), "scale": column(), "reduce_op": nl.add, "reduce_res": column()}
    summed = partial(nisa.activation, reduce_cmd=nisa.reduce_cmd.reset_reduce, **around)
    yield "activation exp, scale, bias, sum", partial(summed, out, nl.exp, a)
    yield "activation_reduce exp", partial(nisa.activation_reduce, out, nl.exp, a, **around)


def reductions() -> Cases:
    """Reductions over partitions and into accumulators, scans, statistics."""
    out, a, near, ones = tile(), tile(), positive(), filled(np.ones((P, 1)))
    for name in ("add", "average", "maximum", "bitwise_or", "bitwise_and"):
        kind = "int32" if name.startswith("bit") else "float32"
        call = partial(nisa.tensor_partition_reduce, tile(kind, (1, F)), getattr(nl, name))
        yield f"tensor_partition_reduce {name}", partial(call, tile(kind))
    for name in REDUCTIONS:
        call = partial(nisa.tensor_scalar_reduce, out, near, nl.multiply, ones, getattr(nl, name))
        yield f"tensor_scalar_reduce {name}", partial(call, reduce_res=column())
    scan = partial(nisa.tensor_tensor_scan, out, near, near, ones)
    for name in (*REDUCTIONS, "subtract", "greater"):
        yield f"tensor_tensor_scan multiply, {name}", partial(scan, nl.multiply, getattr(nl, name))
    turned = partial(scan, nl.multiply, nl.subtract, reverse0=True, reverse1=True)
    yield "tensor_tensor_scan, reversed", turned
    cumulative = partial(nisa.tensor_scalar_cumulative, out, near, nl.multiply, imm0=ones)
    for name in (*REDUCTIONS, "subtract"):
        yield f"tensor_scalar_cumulative {name}", partial(cumulative, op1=getattr(nl, name))
    yield "bn_stats", partial(nisa.bn_stats, tile("float32", (P, 6)), a)
    yield "bn_aggr", partial(nisa.bn_aggr, tile("float32", (P, 2)), positive(60))


def selection() -> Cases:
    """Masks and patterns."""
    out, a, mask, low, high = tile(), tile(), tile("uint8"), column(), column()
    kept = {"reduce_res": column(), "reduce_cmd": nisa.reduce_cmd.reset_reduce}
    yield "select_reduce", partial(nisa.select_reduce, out, mask, a, low, **kept)
    inside = partial(nisa.range_select, out, a, nl.greater_equal, nl.less, low, high)
    yield "range_select", partial(inside, **kept)
    pattern = [[8, 8], [1, 8]]
    for kind in ("int32", "float32"):
        counted = partial(nisa.iota, tile(kind), pattern, channel_multiplier=F)
        yield f"iota {kind}", counted
    yield "affine_select", partial(nisa.affine_select, out, pattern, -1, a, 0.0, nl.less)


def search() -> Cases:
    """The eight largest, and GpSimd's searches and gathers."""
    out, a, eight, places = tile(), tile(), tile("float32", (P, 8)), tile("uint32", (P, 8))
    yield "max8", partial(nisa.max8, eight, a)
    few = filled(np.random.default_rng(0).integers(0, 32, (P, F)))
    for title, data in (("", a), (", ties", few)):
        vals = tile("float32", (P, 8))
        nisa.max8(dst=vals, src=data)
        yield f"nc_find_index8{title}", partial(nisa.nc_find_index8, places, data, vals)
        replace = partial(nisa.nc_match_replace8, out, data, vals, -9.0, places)
        yield f"nc_match_replace8{title}", replace
    best = tile("bfloat16", (P, 8))
    yield "topk", partial(nisa.topk, best, places, tile("bfloat16"), n=16 * F)
    yield "nonzero_with_count", partial(nisa.nonzero_with_count, tile("int32", (P, F + 1)), a)
    bounds, segments = tile("int32", (1, 2, F)), tile("int32", (1, F))
    yield "sequence_bounds", partial(nisa.sequence_bounds, bounds, segments)
    local, each = tile("uint16", (P, F // 16)), tile("uint32")
    yield "local_gather", partial(nisa.local_gather, out, a, local)
    yield "nc_n_gather", partial(nisa.nc_n_gather, out, a, each)


def control() -> Cases:
    """Registers and the core itself; sendrecv needs two cores, and is not here."""
    register, cell = nisa.register_alloc(0), tile("int32", (1, 1))
    yield "register_alloc", partial(nisa.register_alloc, 3)
    yield "register_move", partial(nisa.register_move, register, 5)
    yield "register_load", partial(nisa.register_load, register, cell)
    yield "register_store", partial(nisa.register_store, cell, register)
    yield "core_barrier", partial(nisa.core_barrier, tile(buffer=nl.shared_hbm), 0)
    yield "get_nc_version", nisa.get_nc_version
    yield "get_nc_sub_version", nisa.get_nc_sub_version


def cases() -> dict[str, Call]:
    """Name -> one instruction; the name begins with the instruction's."""
    groups = (
        data_movement, tensor_engine, elementwise, activations, reductions, selection, search,
        control,
    )  # fmt: skip
    return {name: call for group in groups for name, call in group()}
