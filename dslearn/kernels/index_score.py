"""Scores of compressed entries for a few queries: ReLU of each head's dot product, weighted."""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from dslearn.kernels.attention_keys import turned
from dslearn.kernels.cuts import largest, pieces, place
from dslearn.kernels.record_read import decoded, opened
from dslearn.kernels.record_write import faked, new
from dslearn.kernels.tiles import PARTITIONS, load_tile

BANK = 512  # entries at once: fp32 columns of a PSUM bank
BLOCK = 32  # values of an index record that share a scale
Queries = tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor, int, int]


def _queries(
    q: nl.NkiTensor, weights: nl.NkiTensor, first: int, tokens: int, quantise: bool
) -> Queries:
    """Tokens first..: queries turned [I, 1, rows], weights [rows, 1], which rows a token has.

    Rows are heads of tokens. The last is a matrix [rows, tokens] of ones and zeros, whose product
    with the rows' terms sums over the heads of each token.
    """
    _, heads, dim = q.shape
    rows = tokens * heads
    tile = nl.ndarray(shape=(rows, dim), dtype=q.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=q[first : first + tokens, :, :])
    if quantise:
        wide = new(tile, nl.float32)
        nisa.tensor_copy(dst=wide, src=tile)
        values = faked(wide.reshape((rows, dim // BLOCK, BLOCK))).reshape((rows, dim))
        tile = nl.ndarray(shape=(rows, dim), dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.tensor_copy(dst=tile, src=values)
    column = nl.ndarray(shape=(rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=column, src=weights[first : first + tokens, :])
    identity = nl.shared_identity_matrix(n=128, dtype=nl.float32)
    chooser = nl.ndarray(shape=(rows, tokens), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(
        dst=chooser,
        op=nl.add,
        data=identity[0:rows, 0:rows].reshape((rows, tokens, heads)),
        axis=2,
    )
    return turned(tile, tile.dtype), column, chooser, first, tokens


def _keys(
    keys: nl.NkiTensor, first: int, count: int, parts: int, like: nl.NkiTensor
) -> nl.NkiTensor:
    """Records first.. of HBM, decoded in so many parts and turned: [I, count], dtype of `like`."""
    dim = like.shape[0]
    out = nl.ndarray(shape=(dim, count), dtype=like.dtype, buffer=nl.sbuf)
    full = nl.ndarray(shape=(PARTITIONS, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=full, value=1.0)
    for i in range(parts):
        at, stop = count * i // parts, count * (i + 1) // parts
        size = stop - at
        raw = load_tile(keys, first + at, size, 0, keys.shape[1])
        values = decoded(raw, opened(raw, "index", dim), "index", full[0:size, :], nl.bfloat16)
        across = nl.ndarray(shape=(dim, size), dtype=nl.bfloat16, buffer=nl.psum)
        nisa.nc_transpose(dst=across, data=values, engine=nisa.engine.tensor)
        nisa.tensor_copy(dst=out[:, at:stop], src=across, engine=nisa.engine.scalar)
    return out


def _terms(dots: nl.NkiTensor, weights: nl.NkiTensor, round_terms: bool) -> nl.NkiTensor:
    """weights [rows, 1] · relu(dots [rows, columns]): fp32, or bf16 after each of the two steps."""
    dtype = nl.bfloat16 if round_terms else nl.float32
    positive = nl.ndarray(shape=dots.shape, dtype=dtype, buffer=nl.sbuf)
    nisa.activation(dst=positive, op=nl.relu, data=dots)
    terms = nl.ndarray(shape=dots.shape, dtype=dtype, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=terms, data=positive, op0=nl.multiply, operand0=weights)
    return terms


def _summed(terms: nl.NkiTensor, chooser: nl.NkiTensor, target: nl.NkiTensor) -> None:
    """The sum over the heads of each token to `target` [tokens, columns] in HBM."""
    tokens = chooser.shape[1]
    ones = new(chooser, terms.dtype)
    nisa.tensor_copy(dst=ones, src=chooser)
    sums = nl.ndarray(shape=(tokens, terms.shape[1]), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=sums, stationary=ones, moving=terms, accumulate=False)
    out = nl.ndarray(shape=sums.shape, dtype=terms.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=out, src=sums)
    nisa.dma_copy(dst=target, src=out)


@nki.jit
def index_score(
    q: nl.NkiTensor,
    weights: nl.NkiTensor,
    keys: nl.NkiTensor,
    quantise: bool,
    round_terms: bool,
) -> nl.NkiTensor:
    """score[t, j] = sum over heads h of weights[t, h] · relu(q[t, h] · key[j]).

    Dimensions:
        T queries, H heads, 1 to 128, I values of an index head, a multiple of 32 up to 128;
        N entries.
    Args:
        q: [T, H, I] bf16 or fp32, rotated, in HBM.
        weights: [T, H] fp32, of any sign, in HBM.
        keys: [N, I/2 + I/32] uint8 "index" records of one sequence, in HBM.
        quantise: give q the values of its own index record, as the stored keys have them.
        round_terms: round each dot product, each weighted term and the sum to bf16.
    Returns:
        score: [T, N] fp32, in shared HBM; all entries, whether a query sees them or not.
    Notes:
        A record is 68 bytes for 128 values and its values are exact in bf16; so are quantised
        queries, and their products are summed in fp32: the Tensor engine runs at its 16-bit rate in
        either arithmetic. As many tokens as fill 128 lanes with their heads share a product. ReLU
        comes before the weight, which may be negative, so heads cannot be folded into one query.
        The sum over heads is a sum over lanes, hence a product too, with a matrix of ones. Its
        order is the engine's: in fp32, another order than torch's can differ in the last bit.
        Decoding is most of the work, 3.5 Vector cycles per value, once for all queries.
        A key with a NaN scale counts as zeros. Two cores take half of the entries each.
    Pseudocode:
        for each block of 512 entries j:
            dots[t, h, j] = sum over i of q[t, h, i] · key[j, i]
            terms = weights[t, h] · max(dots, 0)
            score[t, j] = sum over h of terms[t, h, j]
    """
    tokens, heads, dim = q.shape
    entries = keys.shape[0]
    assert heads <= PARTITIONS and dim <= PARTITIONS, "H and I up to 128"
    y, target = place((tokens, entries), nl.float32, entries == 1)
    together = PARTITIONS // heads
    groups = []
    for first in range(0, tokens, together):
        groups.append(_queries(q, weights, first, min(together, tokens - first), quantise))
    parts = -(-largest(entries, BANK) // PARTITIONS)  # the same for all: cores run one program
    for start, count in pieces(entries, BANK, cores=2):
        across = _keys(keys, start, count, parts, groups[0][0])
        for query, column, chooser, first, some in groups:
            dots = nl.ndarray(shape=(some * heads, count), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(dst=dots, stationary=query[:, 0, :], moving=across, accumulate=False)
            terms = _terms(dots, column, round_terms)
            _summed(terms, chooser, target[first : first + some, start : start + count])
    return y
