"""The compressor behind its two products: pairs of tokens pooled and normalised, open ones kept."""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from dslearn.kernels.cuts import pieces, place
from dslearn.kernels.pool_parts import (
    combined,
    new_tile,
    normed,
    odd_of,
    pooled,
    replace,
    rows_of,
    test,
)
from dslearn.kernels.tiles import PARTITIONS, load_tile, result, row_blocks, store_tile


def _counted(tokens: int, first: int, rows: int, groups: int) -> list[nl.NkiTensor]:
    """Columns int32 [rows · groups, 1], for sequences first..: its number, its group, its token."""
    count = rows * groups
    flat = nl.ndarray(shape=(1, 3, count), dtype=nl.int32, buffer=nl.sbuf)
    for i, steps, offset in (
        (0, [[1, rows], [0, groups]], first),
        (1, [[0, rows], [1, groups]], 0),
        (2, [[tokens, rows], [2, groups]], first * tokens),
    ):
        nisa.iota(dst=flat[:, i, :], pattern=steps, offset=offset)
    columns = []
    for i in range(3):
        column = new_tile(count, 1, nl.int32)
        nisa.dma_copy(dst=column, src=flat[:, i, :])
        columns.append(column)
    return columns


def _every(column: nl.NkiTensor, first: int, rows: int, groups: int) -> nl.NkiTensor:
    """Rows first.. of a column [B, 1] of HBM, each `groups` times: int32 [rows · groups, 1]."""
    tile = new_tile(rows * groups, 1, nl.int32)
    nisa.dma_copy(dst=tile, src=column[first : first + rows, :].broadcast(1, groups))
    return tile


def _lanes(
    start: nl.NkiTensor, lengths: nl.NkiTensor, tokens: int, first: int, rows: int
) -> tuple[nl.NkiTensor, ...]:
    """Columns with a lane for each group: its sequence, the rows of its two tokens in [B T, D],
    whether the first is the waiting one instead, whether this call closes it.
    """
    groups = tokens // 2 + 1
    sequence, group, even = _counted(tokens, first, rows, groups)
    odd = odd_of(_every(start, first, rows, groups))
    left = combined(even, nl.subtract, odd, nl.int32)
    right = new_tile(rows * groups, 1, nl.int32)
    nisa.tensor_scalar(dst=right, data=left, op0=nl.add, operand0=1)
    opened = test(combined(group, nl.less, odd, nl.float32), nl.not_equal, 0.0)
    needed = new_tile(rows * groups, 1, nl.int32)  # 2 j + 2 - o tokens
    nisa.tensor_scalar(dst=needed, data=group, op0=nl.multiply, operand0=2, op1=nl.add, operand1=2)
    needed = combined(needed, nl.subtract, odd, nl.int32)
    length = _every(lengths, first, rows, groups)
    closed = test(combined(needed, nl.less_equal, length, nl.float32), nl.not_equal, 0.0)
    return sequence, left, right, opened, closed


def _pair(
    source: nl.NkiTensor, state: nl.NkiTensor, lanes: tuple[nl.NkiTensor, ...]
) -> list[nl.NkiTensor]:
    """Both tokens of each group [P, D], from source [B T, D] or what waits in state [B, D]."""
    sequence, left, right, opened, _ = lanes
    pair = [rows_of(source, left), rows_of(source, right)]
    replace(pair[0], rows_of(state, sequence), opened)
    return pair


def _each_token(u: nl.NkiTensor, weight: nl.NkiTensor, eps: float, dtype: nl.DType) -> nl.NkiTensor:
    """Ratio 1: the norm of every row of u [B, T, D]."""
    batch, tokens, dim = u.shape
    flat = u.reshape((batch * tokens, dim))
    y, target = result(batch * tokens, dim, dtype)
    for first, height in row_blocks(batch * tokens):
        tile = load_tile(flat, first, height, 0, dim)
        store_tile(target, first, 0, normed(tile, weight, eps, dtype))
    return y.reshape((batch, tokens, dim))


def _kept(
    state: nl.NkiTensor, tokens: nl.NkiTensor, first: int, closed: float,
    columns: tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor],
) -> nl.NkiTensor:  # fmt: skip
    """What waits afterwards: the last token if unpaired, `closed` if not, the old if none came.

    columns: [rows, 1] each: the last token, whether it waits, whether there was none.
    """
    last, waits, none = columns
    rows, width = last.shape[0], state.shape[1]
    after = new_tile(rows, width, nl.float32)
    nisa.memset(dst=after, value=closed)
    replace(after, rows_of(tokens, last), waits)
    replace(after, load_tile(state, first, rows, 0, width), none)
    return after


def _after(
    start: nl.NkiTensor, lengths: nl.NkiTensor, tokens: int, first: int, rows: int
) -> tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor]:
    """Columns [rows, 1] for `_kept`."""
    length = _every(lengths, first, rows, 1)
    end = combined(_every(start, first, rows, 1), nl.add, length, nl.int32)
    base = new_tile(rows, 1, nl.int32)
    nisa.iota(dst=base, pattern=[[0, 1]], offset=first * tokens - 1, channel_multiplier=tokens)
    last = combined(base, nl.add, length, nl.int32)
    waits = test(odd_of(end), nl.equal, 1.0)
    return last, waits, test(length, nl.equal, 0.0)


@nki.jit
def compress_pool(  # noqa: PLR0913 - two products, where they stand, and two tensors of state
    u: nl.NkiTensor,
    weight: nl.NkiTensor,
    eps: float,
    round_latent: bool,
    g: nl.NkiTensor = None,
    start: nl.NkiTensor = None,
    lengths: nl.NkiTensor = None,
    open_u: nl.NkiTensor = None,
    open_g: nl.NkiTensor = None,
) -> nl.NkiTensor:
    """latent = norm of the pooled tokens of each closed group; the token that waits is kept.

    Dimensions:
        B sequences, T tokens, D values; G groups: T at ratio 1, T // 2 + 1 at ratio 2, where T is
        at most 126.
    Args:
        u: [B, T, D] fp32 or bf16, values, in HBM.
        weight: [1, D] bf16 or fp32, of the norm, in HBM.
        eps: of the norm; above 1e-26, see rmsnorm.
        round_latent: round the pooled values and the result to bf16, else fp32.
        g: [B, T, D] fp32, scores, in HBM; None at ratio 1, and all that follows.
        start: [B, 1] int32, position of the first token, in HBM.
        lengths: [B, 1] int32, real tokens, in HBM.
        open_u, open_g: [B, D] fp32, the token that waits, 0 and -inf for none, in HBM; written.
    Returns:
        latent: [B, G, D] bf16 or fp32, in shared HBM; zeros where this call closes no group.
    Notes:
        Which tokens form a pair depends on the parity of the position, a number of run time. Shapes
        do not: every lane is a group, and gathers its two tokens by row, the waiting one included;
        a lane that closes nothing gathers some row and is emptied. So one compiled kernel serves
        both parities and ragged lengths. Six gathers of 2 KiB
        rows, a dozen instructions of D to 2 D cycles, however many lanes are in use; a softmax over
        two is two sigmoids, on Scalar.
        Two cores take half of the sequences each; a single one is done by both, and the first
        core's state is kept.
    Pseudocode:
        o = start[b] mod 2;  tokens -1, 0, 1, .. are the waiting one and u[b], g[b]
        for each group j with 2 j - o + 2 <= lengths[b]:
            p0, p1 = softmax of g at 2 j - o and 2 j - o + 1, channel by channel
            latent[b, j] = norm(p0 u at 2 j - o  +  p1 u at 2 j - o + 1)
        if lengths[b] > 0: keep u, g of its last token if start + lengths is odd, else 0, -inf
    """
    batch, tokens, dim = u.shape
    dtype = nl.bfloat16 if round_latent else nl.float32
    if g == None:  # noqa: E711 - the language has no `is`
        return _each_token(u, weight, eps, dtype)
    groups = tokens // 2 + 1
    assert groups <= PARTITIONS // 2, "at most 126 tokens"
    y, target = place((batch, groups, dim), dtype, batch == 1)
    kept = [open_u, open_g]
    if batch == 1 and nl.program_id(axis=0) == 1:
        kept = [nl.ndarray(shape=(1, dim), dtype=nl.float32, buffer=nl.private_hbm) for _ in kept]
    values, scores = u.reshape((batch * tokens, dim)), g.reshape((batch * tokens, dim))
    for first, rows in pieces(batch, PARTITIONS // groups):
        lanes = _lanes(start, lengths, tokens, first, rows)
        parts = [_pair(values, open_u, lanes), _pair(scores, open_g, lanes)]
        latent = normed(pooled(parts[0], parts[1], dtype), weight, eps, dtype)
        out = new_tile(rows * groups, dim, dtype)
        nisa.memset(dst=out, value=0.0)
        replace(out, latent, lanes[4])
        nisa.dma_copy(dst=target[first : first + rows, :, :], src=out)
        columns = _after(start, lengths, tokens, first, rows)
        after = [
            _kept(open_u, values, first, 0.0, columns),
            _kept(open_g, scores, first, float("-inf"), columns),
        ]
        for i in range(2):
            if batch == 1 and nl.num_programs() == 2:  # both have read what the first overwrites
                nisa.core_barrier(data=(open_u, open_g)[i], cores=(0, 1))
            store_tile(kept[i], first, 0, after[i])
    return y
