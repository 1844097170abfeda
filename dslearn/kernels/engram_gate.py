"""Engram's gate: how much of a looked-up value each residual stream takes."""

from __future__ import annotations

from collections.abc import Callable

import nki
import nki.isa as nisa
import nki.language as nl

from dslearn.kernels.streams import cut, divisor, load_cut, products
from dslearn.kernels.tiles import PARTITIONS, column_blocks, result, row_blocks

LANES = 32  # of a row, at most; fixed, so that a row's sums do not depend on the number of rows
WIDEST = 1024  # columns of all streams at once: a product in fp32 is two banks of PSUM
SMALLEST = 1e-6  # of the magnitude under the root
SIGN = 0x80000000  # the sign bit of fp32


def _partial_sums(
    sums: nl.NkiTensor, h: nl.NkiTensor, key: nl.NkiTensor, weight: nl.NkiTensor
) -> None:
    """sums [P, 3, S] = sums over w of h · key · weight, h², key² of tiles [P, S, w].

    The first product is exact for bf16, and the second takes half as long for one operand in PSUM.
    """
    pairs = nl.ndarray(shape=h.shape, dtype=nl.float32, buffer=nl.psum)
    nisa.tensor_tensor(dst=pairs, data1=h, data2=key, op=nl.multiply)
    terms = nl.ndarray(shape=h.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=terms, data1=pairs, data2=weight, op=nl.multiply)
    nisa.tensor_reduce(dst=sums[:, 0, :], op=nl.add, data=terms, axis=2)
    lanes, streams, width = h.shape
    for c in range(streams):
        for i, values in ((1, h), (2, key)):
            squares = nl.ndarray(shape=(lanes, width), dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation(
                dst=squares,
                op=nl.square,
                data=values[:, c, :],
                reduce_op=nl.add,
                reduce_res=sums[:, i, c : c + 1],
                reduce_cmd=nisa.reduce_cmd.reset_reduce,
            )


def _weights(weight: nl.NkiTensor, lanes: int, rows: int) -> Callable[[int, int], nl.NkiTensor]:
    """load(at, wide): those columns of weight [S, d] as a tile [rows n, S, wide].

    All of a lane's columns are loaded once, a part of them when it is needed.
    """
    view = cut(weight.expand_dim(0), lanes).broadcast(0, rows)
    held: dict[str, nl.NkiTensor] = {}

    def load(at: int, wide: int) -> nl.NkiTensor:
        if wide < view.shape[3]:
            return load_cut(view, at, wide)
        if "all" not in held:
            held["all"] = load_cut(view, at, wide)
        return held["all"]

    return load


def _row_sums(
    h: nl.NkiTensor,
    keys: nl.NkiTensor,
    weights: Callable[[int, int], nl.NkiTensor],
    blocks: list[tuple[int, int]],
) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """The three sums of rows [r, n, S, w] of HBM as [S, 3, r], and the last tile of h."""
    height, lanes, streams, _ = h.shape
    shape = (height * lanes, 3, streams, len(blocks))
    partial = nl.ndarray(shape=shape, dtype=nl.float32, buffer=nl.sbuf)
    for i in range(len(blocks)):
        at, wide = blocks[i]
        tile, key = load_cut(h, at, wide), load_cut(keys, at, wide)
        _partial_sums(partial[:, :, :, i], tile, key, weights(at, wide)[0 : tile.shape[0], :, :])
    if len(blocks) == 1:
        return _by_stream(partial[:, :, :, 0], height), tile
    total = nl.ndarray(shape=shape[0:3], dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=total, op=nl.add, data=partial, axis=3)
    return _by_stream(total, height), tile


def _by_stream(partial: nl.NkiTensor, rows: int) -> nl.NkiTensor:
    """Partial sums [r n, 3, S] of all lanes of a row, added up: [S, 3, r].

    By transposing, which moves bits: a product with ones would add up zeros times the other rows'
    sums, and zero times NaN is NaN.
    """
    lanes, _, streams = partial.shape
    turned = nl.ndarray(shape=(streams, 3, lanes), dtype=nl.float32, buffer=nl.psum)
    for i in range(3):
        nisa.nc_transpose(dst=turned[:, i, :], data=partial[:, i, :], engine=nisa.engine.tensor)
    sums = nl.ndarray(shape=(streams, 3, rows), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(
        dst=sums, op=nl.add, data=turned.reshape((streams, 3, rows, lanes // rows)), axis=3
    )
    return sums


def _gates(sums: nl.NkiTensor, columns: int, eps: float) -> nl.NkiTensor:
    """sigmoid(copysign(sqrt(max(|a|, 1e-6)), a)) of sums [S, 3, r]: [S, r]."""
    streams, _, rows = sums.shape
    roots = nl.ndarray(shape=(streams, 2, rows), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=roots, op=nl.rsqrt, data=sums[:, 1:3, :], bias=eps, scale=1.0 / columns)
    scaled = nl.ndarray(shape=(streams, rows), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=scaled, data1=sums[:, 0, :], data2=roots[:, 0, :], op=nl.multiply)
    a = nl.ndarray(shape=(streams, rows), dtype=nl.float32, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(
        dst=a,
        data=scaled,
        op0=nl.multiply,
        operand0=columns**-0.5,
        op1=nl.multiply,
        operand1=roots[:, 1, :],
    )
    size = nl.ndarray(shape=(streams, rows), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=size, data=a, op0=nl.abs, operand0=None, op1=nl.maximum, operand1=SMALLEST
    )
    nisa.activation(dst=size, op=nl.sqrt, data=size)
    sign = nl.ndarray(shape=(streams, rows), dtype=nl.uint32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=sign, data=a.view(nl.uint32), op0=nl.bitwise_and, operand0=SIGN)
    bits = size.view(nl.uint32)
    nisa.tensor_tensor(
        dst=bits, data1=bits, data2=sign, op=nl.bitwise_or, engine=nisa.engine.vector
    )
    gate = nl.ndarray(shape=(streams, rows), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=gate, op=nl.sigmoid, data=size)
    return gate


def _close(gate: nl.NkiTensor, dead: nl.NkiTensor) -> None:
    """gate [S, r] = 0 where dead [r] in HBM is not 0."""
    closed = nl.ndarray(shape=gate.shape, dtype=nl.uint8, buffer=nl.sbuf)
    nisa.dma_copy(dst=closed, src=dead.expand_dim(0).broadcast(0, gate.shape[0]))
    nisa.tensor_copy_predicated(dst=gate, src=0.0, predicate=closed)


def _to_lanes(gate: nl.NkiTensor, lanes: int) -> nl.NkiTensor:
    """gate [S, r] as [r n, S], the same in a row's n lanes."""
    streams, rows = gate.shape
    wide = nl.ndarray(shape=(streams, rows, lanes), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=wide, src=gate.expand_dim(2).broadcast(2, lanes))
    turned = nl.ndarray(shape=(rows * lanes, streams), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=turned, data=wide, engine=nisa.engine.tensor)
    factors = nl.ndarray(shape=turned.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=factors, src=turned)
    return factors


@nki.jit
def engram_gate(
    h: nl.NkiTensor,
    kv: nl.NkiTensor,
    weight: nl.NkiTensor,
    eps: float,
    dead: nl.NkiTensor = None,
) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """(h + gate · value, gate), the gate from how well each stream agrees with its key.

    Dimensions:
        R rows, S streams, d columns, each at least 1. A row lies in n lanes of w = d/n columns,
        n the largest divisor of d up to 32; a block has 128/n rows.
    Args:
        h: [R, S, d] bf16 or fp32, in HBM.
        kv: [R, (S + 1) d], dtype of h, in HBM: a key for each stream, then one value.
        weight: [S, d] fp32, in HBM: q_weight · k_weight.
        eps: number added to the means of squares, at least 2^-87 (1e-20 in V4.1).
        dead: [R] uint8, in HBM: not 0 at image positions, whose gate is 0; None for none.
    Returns:
        out: [R, S, d], dtype of h, and gate: [R, S] fp32, in shared HBM.
    Notes:
        Two DMA hops of 2 µs; between them three sums over a row, of products by Vector and of
        squares by Scalar, 2.7 and 1.5 µs for up to four rows of d = 5120, and 2 µs of small
        instructions on one number per stream and row: the sums of a row's lanes are brought to one
        lane by transposing, and the gate back the same way. copysign is two bit operators. A row's
        bytes depend on nothing but the row, and NaN stays in its stream. fp32 inside; out is
        rounded once.
        Two cores take half of the rows each. A single row is done by both: its sums would have to
        be exchanged, which takes longer than the 2 µs that half of the columns would save.
    Pseudocode:
        a[c] = (sum of h[c] · weight[c] · key[c]) · rsqrt(mean h[c]² + eps)
               · rsqrt(mean key[c]² + eps) · d^-½
        gate[c] = sigmoid(copysign(sqrt(max(|a[c]|, 1e-6)), a[c]));  0 if dead
        out[c] = h[c] + gate[c] · value
    """
    rows, streams, columns = h.shape
    lanes = divisor(columns, LANES)
    out, out_mine = result(rows, streams * columns, h.dtype)
    gates, gates_mine = result(rows, streams, nl.float32)
    target = out_mine.reshape((rows, streams, columns))
    blocks = column_blocks(columns // lanes, max(1, WIDEST // streams))
    weights = _weights(weight, lanes, min(-(-rows // nl.num_programs()), PARTITIONS // lanes))
    for start, height in row_blocks(rows, PARTITIONS // lanes):
        block = slice(start, start + height)
        source, goal = cut(h[block, :, :], lanes), cut(target[block, :, :], lanes)
        keys = kv[block, 0 : streams * columns].reshape_dim(1, (streams, columns))
        value = cut(kv[block, streams * columns : (streams + 1) * columns], lanes)
        sums, tile = _row_sums(source, cut(keys, lanes), weights, blocks)
        gate = _gates(sums, columns, eps)
        if dead != None:  # noqa: E711 - the language has no `is`
            _close(gate, dead[block])
        nisa.dma_copy(dst=gates_mine[block, :].permute((1, 0)), src=gate)
        factors = _to_lanes(gate, lanes)
        for at, wide in blocks:
            if len(blocks) > 1:  # only one tile is kept
                tile = load_cut(source, at, wide)
            taken = nl.ndarray(shape=tile.shape, dtype=nl.float32, buffer=nl.psum)
            products(taken, load_cut(value, at, wide), factors)
            new = nl.ndarray(shape=tile.shape, dtype=h.dtype, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=new, data1=tile, data2=taken, op=nl.add)
            nisa.dma_copy(dst=goal[..., at : at + wide], src=new)
    return out.reshape((rows, streams, columns)), gates
