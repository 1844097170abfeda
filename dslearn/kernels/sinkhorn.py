"""Sinkhorn's balancing of small matrices, one matrix per lane (docs/reference/model.md, Streams).

R rows (tokens), one in each lane; S streams, so a lane holds S x S numbers.
"""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl


def _divide(dst: nl.NkiTensor, numbers: nl.NkiTensor, summed: nl.NkiTensor) -> None:
    """dst [R, S, S] = numbers over the sums of `summed` [R, S, n] over its last dim.

    The hardware has no division: reciprocal is the Vector engine's, exact to a bit of fp32.
    """
    rows, streams, _ = dst.shape
    total = nl.ndarray(shape=(rows, streams), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=total, op=nl.add, data=summed, axis=2)
    inverse = nl.ndarray(shape=(rows, streams), dtype=nl.float32, buffer=nl.sbuf)
    nisa.reciprocal(dst=inverse, data=total)
    factors = inverse.expand_dim(2).broadcast(2, streams)
    nisa.tensor_tensor(dst=dst, data1=numbers, data2=factors, op=nl.multiply)


def _exponentials(logits: nl.NkiTensor) -> nl.NkiTensor:
    """exp(logits - largest of their row), [R, S, S]."""
    rows, streams, _ = logits.shape
    peak = nl.ndarray(shape=(rows, streams), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=peak, op=nl.maximum, data=logits, axis=2)
    shifted = nl.ndarray(shape=logits.shape, dtype=nl.float32, buffer=nl.sbuf)
    largest = peak.expand_dim(2).broadcast(2, streams)
    nisa.tensor_tensor(dst=shifted, data1=logits, data2=largest, op=nl.subtract)
    nisa.activation(dst=shifted, op=nl.exp, data=shifted)
    return shifted


def sinkhorn(logits: nl.NkiTensor, iterations: int, eps: float) -> nl.NkiTensor:
    """Logits [R, S, S] in SBUF, made nearly doubly stochastic: fp32 [R, S, S] in SBUF.

    Row softmax plus eps, column division, then `iterations` - 1 times rows and columns. A division
    is a sum, a reciprocal and a product; each needs the one before, and takes 64 cycles plus 36 of
    waiting for up to 128 matrices of up to 8 x 8. The matrix lies in one of [S + 1, S + 1] whose
    last row and column are eps, so that a sum includes it and needs no instruction of its own.
    """
    rows, streams, _ = logits.shape
    padded = nl.ndarray(shape=(rows, streams + 1, streams + 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=padded, value=eps)
    matrix = padded[:, 0:streams, 0:streams]
    by_row, by_column = padded[:, 0:streams, :], padded[:, :, 0:streams].permute((0, 2, 1))
    turned = matrix.permute((0, 2, 1))
    numbers = _exponentials(logits)
    _divide(matrix, numbers, numbers)
    nisa.tensor_scalar(dst=matrix, data=matrix, op0=nl.add, operand0=eps)
    _divide(turned, turned, by_column)
    for _ in range(iterations - 1):
        _divide(matrix, matrix, by_row)
        _divide(turned, turned, by_column)
    out = nl.ndarray(shape=logits.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=out, src=matrix)
    return out
