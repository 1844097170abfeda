"""Attention of a few queries to a window and to selected compressed entries, from their records."""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from dslearn.kernels.attention_keys import (
    Keys,
    checked,
    columns,
    entries_of,
    of_query,
    turned,
    window_of,
)
from dslearn.kernels.cuts import place
from dslearn.kernels.tiles import load_tile

EMPTY = 1e30  # minus the running maximum of a query that has no key: its output is zero


def _scores(query: nl.NkiTensor, keys: list[Keys], identity: nl.NkiTensor) -> list[nl.NkiTensor]:
    """Dot products with bias, fp32 [H, columns] in PSUM, four blocks of keys to a bank.

    A bias column becomes a row for all heads as a product with the identity.
    """
    count, heads = query.shape[1], query.shape[2]
    banks = []
    for first in range(0, len(keys), 4):
        some = keys[first : first + 4]
        bank = nl.ndarray(
            shape=(heads, sum([k[0].shape[0] for k in some])), dtype=nl.float32, buffer=nl.psum
        )
        at = 0
        for values, across, bias in some:
            size = values.shape[0]
            place = bank[:, at : at + size]
            for i in range(count):
                nisa.nc_matmul(
                    dst=place, stationary=query[:, i, :], moving=across[:, i, :], accumulate=i > 0
                )
            nisa.nc_matmul(
                dst=place, stationary=bias.broadcast(1, heads),
                moving=identity[0:size, 0:size], accumulate=True,
            )  # fmt: skip
            at += size
        banks.append(bank)
    return banks


def _exponentials(
    banks: list[nl.NkiTensor], scale: float, dtype: nl.DType
) -> tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor]:
    """exp(scale · score - M) [H, N] in `dtype`, its sum in fp32 [H, 1], and -M [H, 1]."""
    heads = banks[0].shape[0]
    tops = nl.ndarray(shape=(heads, len(banks)), dtype=nl.float32, buffer=nl.sbuf)
    for i in range(len(banks)):
        nisa.tensor_reduce(dst=tops[:, i : i + 1], op=nl.maximum, data=banks[i], axis=1)
    top = nl.ndarray(shape=(heads, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=top, op=nl.maximum, data=tops, axis=1)
    minus = nl.ndarray(shape=(heads, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=minus, data=top, op0=nl.multiply, operand0=-scale, op1=nl.minimum, operand1=EMPTY
    )
    width = sum([bank.shape[1] for bank in banks])
    share = nl.ndarray(shape=(heads, width), dtype=dtype, buffer=nl.sbuf)
    total = nl.ndarray(shape=(heads, 1), dtype=nl.float32, buffer=nl.sbuf)
    at = 0
    for i in range(len(banks)):
        size = banks[i].shape[1]
        nisa.activation(
            dst=share[:, at : at + size],
            op=nl.exp,
            data=banks[i],
            bias=minus,
            scale=scale,
            reduce_op=nl.add,
            reduce_res=total,
            reduce_cmd=nisa.reduce_cmd.reduce if i else nisa.reduce_cmd.reset_reduce,
        )
        at += size
    return share, total, minus


def _weighted(share: nl.NkiTensor, keys: list[Keys]) -> nl.NkiTensor:
    """share [H, N] times the keys' values: fp32 [H, D] in PSUM."""
    heads = share.shape[0]
    out = nl.ndarray(shape=(heads, keys[0][0].shape[1]), dtype=nl.float32, buffer=nl.psum)
    at = 0
    for i in range(len(keys)):
        values = keys[i][0]
        size = values.shape[0]
        across = nl.ndarray(shape=(size, heads), dtype=share.dtype, buffer=nl.psum)
        nisa.nc_transpose(dst=across, data=share[:, at : at + size], engine=nisa.engine.tensor)
        moved = nl.ndarray(shape=(size, heads), dtype=share.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=moved, src=across, engine=nisa.engine.scalar)
        nisa.nc_matmul(dst=out, stationary=moved, moving=values, accumulate=i > 0)
        at += size
    return out


def _finished(
    out: nl.NkiTensor, sums: nl.NkiTensor, total: nl.NkiTensor, minus: nl.NkiTensor,
    sink: nl.NkiTensor,
) -> None:  # fmt: skip
    """out [H, D] = sums / (total + exp(sink - M)); the last three are [H, 1]."""
    extra = nl.ndarray(shape=total.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=extra, op=nl.exp, data=sink, bias=minus)
    nisa.tensor_tensor(dst=extra, data1=extra, data2=total, op=nl.add)
    inverse = nl.ndarray(shape=total.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.reciprocal(dst=inverse, data=extra)
    nisa.tensor_scalar(dst=out, data=sums, op0=nl.multiply, operand0=inverse)


def _mine(tokens: int, heads: int) -> list[tuple[int, int, int]]:
    """(query, first head, number) of what this core does.

    Cores share an even number of queries, else the heads of each; halves of heads are computed in
    the same way by one core, so that its bytes are the same. If neither is even both do all.
    """
    cores, core = nl.num_programs(), nl.program_id(axis=0)
    if tokens % 2 == 0:
        each = tokens // cores
        return [(t, 0, heads) for t in range(core * each, core * each + each)]
    halves = [(0, heads)]
    if heads % 2 == 0:
        halves = [(0, heads // 2), (heads // 2, heads // 2)]
        halves = halves if cores == 1 else [halves[core]]
    return [(t, first, some) for t in range(tokens) for first, some in halves]


@nki.jit
def sparse_attn(  # noqa: PLR0913 - two kinds of keys, each with what hides them
    q: nl.NkiTensor,
    position: nl.NkiTensor,
    window: nl.NkiTensor,
    held: nl.NkiTensor,
    sink: nl.NkiTensor,
    width: int,
    round_p: bool,
    entries: nl.NkiTensor = None,
    selected: nl.NkiTensor = None,
) -> nl.NkiTensor:
    """o = softmax over window and selected keys, with a sink, of q · key / sqrt(D), times the keys.

    Dimensions:
        T queries, H heads, 1 to 128, D values, a multiple of 32 up to 512; N window records, E rows
        of entries, K selected; at most 2048 keys, and numbers below 2^24.
    Args:
        q: [T, H, D] bf16 or fp32, rotated, in HBM.
        position: [T, 1] int32, of each query; negative sees nothing of the window, in HBM.
        window: [N, D + D/32] uint8 records, in HBM: a ring, or what a ring held and then the chunk.
        held: [N, 1] int32, the position of each window record; negative is none, in HBM.
        sink: [H, 1] fp32, in HBM.
        width: positions of the window, the query's own included.
        round_p: round the probabilities that multiply values to bf16, not those of the sum.
        entries: [E, D/2 + D/16] uint8 records, in HBM, or None.
        selected: [T, K] int32, rows of entries; any outside 0 .. E - 1 is none, in HBM, or None.
    Returns:
        o: [T, H, D], dtype of q, in shared HBM; zeros for a query without keys.
    Notes:
        Records are gathered and decoded here: 528 and 288 bytes for 512 values, a half and a
        quarter of bf16, paid with about 3 Vector and 1 Scalar cycles per value. Codes are read with
        integer operations, so e4m3 codes up to 448 are what they say, and values are exact in bf16.
        The window is decoded once for all queries. The Tensor engine turns keys for the scores, and
        adds what hides a key to its score: a product with the identity lays a column out as a row.
        A hidden record may hold anything: a NaN scale decodes to zeros, and only those who see it
        get NaN. Scores stay in PSUM; the sink joins the sum. fp32 sums, o rounded once.
        Two cores take half of the queries each, or half of the heads if the queries are odd.
    Pseudocode:
        for each query t, head h:
            n ranges over j with position[t] - width < held[j] <= position[t], and selected[t]
            s[n] = q[t, h] · key[n] / sqrt(D);  M = max(max s, -1e30)
            p[n] = exp(s[n] - M)
            o[t, h] = sum of bf16(p[n]) key[n] / (sum of p[n] + exp(sink[h] - M))
    """
    tokens, heads, dim = q.shape
    y, target = place((tokens, heads, dim), q.dtype, tokens % 2 == heads % 2 == 1)
    dtypes = q.dtype, nl.bfloat16 if round_p else nl.float32
    identity = nl.shared_identity_matrix(n=128, dtype=q.dtype)
    assert window.shape[1] == dim + dim // 32, "window: records of D values"
    near = window_of(window, held, position, width, dim, dtypes)
    chosen = selected != None  # noqa: E711 - the language has no `is`
    if chosen:
        assert entries.shape[1] == dim // 2 + dim // 16, "entries: records of D values"
        rows, valid = checked(columns(selected), entries.shape[0])

    def far(t: int) -> list[tuple[nl.NkiTensor, nl.NkiTensor]]:
        if not chosen:
            return []
        places, inside = of_query(rows, t, selected), of_query(valid, t, selected)
        return entries_of(entries, places, inside, dim, dtypes)

    items = _mine(tokens, heads)
    ahead, changed = far(items[0][0]), True
    for i in range(len(items)):
        t, head, some = items[i]
        if changed:
            keys = [(values, across, bias[:, t : t + 1]) for values, across, bias in near]
            keys = keys + [(values, turned(values, q.dtype), bias) for values, bias in ahead]
        query = load_tile(q[t, head : head + some, :], 0, some, 0, dim)
        banks = _scores(turned(query, q.dtype), keys, identity)
        # Engines work in program order: decode the next query's keys while these are multiplied.
        changed = i + 1 < len(items) and items[i + 1][0] != t
        if changed:
            ahead = far(items[i + 1][0])
        share, total, minus = _exponentials(banks, dim**-0.5, dtypes[1])
        out = nl.ndarray(shape=(some, dim), dtype=q.dtype, buffer=nl.sbuf)
        _finished(out, _weighted(share, keys), total, minus, load_tile(sink, head, some, 0, 1))
        nisa.dma_copy(dst=target[t, head : head + some, :], src=out)
    return y
