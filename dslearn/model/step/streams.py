"""Reading, mixing and writing the streams of one token: `dslearn.model.hyper` in NumPy.

Shapes: S streams, d hidden.
"""

from __future__ import annotations

import numpy as np

from dslearn.model.hyper import HyperConnection
from dslearn.model.step.parts import Row, matrix, product


def coefficients(layer: HyperConnection, h: Row) -> tuple[Row, Row, Row]:
    """h [S, d] -> pre [S], post [S], comb [S, S]: `HyperConnection.forward`."""
    s, flat = layer.streams, h.reshape(-1)
    m = product(matrix(layer.fn), flat) * (1 / np.sqrt(flat.dot(flat) / flat.size + layer.norm_eps))
    m = m * matrix(layer.scale)[layer.group.numpy()] + matrix(layer.base)
    gates = 1 / (1 + np.exp(-m[: 2 * s]))
    comb = sinkhorn(m[2 * s :].reshape(s, s), layer.iterations, layer.hc_eps)
    return gates[:s] + np.float32(layer.hc_eps), 2 * gates[s:], comb


def sinkhorn(logits: Row, iterations: int, eps: float) -> Row:
    """logits [S, S] -> nearly doubly stochastic [S, S]: `hyper.sinkhorn`.

    C = diag(1/u) A diag(1/v). Dividing the rows by their sums plus eps replaces u by
    A (1/v) + eps u, one product of [A, eps I] with (1/v, u); the columns likewise with A
    transposed. So a half step is two calls, a product and a reciprocal.
    """
    size = len(logits)
    a = np.exp(logits - logits.max(1, keepdims=True))
    a /= a.sum(1, keepdims=True)
    a += np.float32(eps)
    own = np.eye(size, dtype=np.float32) * np.float32(eps)
    by_row, by_column = np.concatenate((a, own), 1), np.concatenate((a.T, own), 1)
    # (1/v, u) and (1/u, v), each twice, because a product cannot write where it reads.
    (x0, y0), (x1, y1) = np.ones((2, 2, 2 * size), np.float32)
    turns = [
        (y[:size], y, new_y[size:], x[:size], x, new_x[size:], new_y[:size])
        for x, y, new_x, new_y in ((x0, y0, x1, y1), (x1, y1, x0, y0))
    ]
    row_sums, column_sums, reciprocal = by_row.dot, by_column.dot, np.reciprocal
    for turn in range(iterations - 1):
        _, y, new_v, c, x, new_u, new_r = turns[turn % 2]
        column_sums(y, new_v)
        reciprocal(new_v, c)
        row_sums(x, new_u)
        reciprocal(new_u, new_r)
    r, y, new_v, c, *_ = turns[(iterations - 1) % 2]
    column_sums(y, new_v)
    reciprocal(new_v, c)
    return a * r[:, None] * c


def collapse(h: Row, weights: Row) -> Row:
    """h [S, d], weights [S] -> the mixture [d] that a sublayer reads."""
    return weights.dot(h)


def expand(y: Row, h: Row, post: Row, comb: Row) -> Row:
    """y [d], h [S, d], post [S], comb [S, S] -> the streams after a sublayer: `hyper.expand`."""
    out = comb.T.dot(h)
    out += post[:, None] * y
    return out
