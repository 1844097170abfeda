"""What every part of a step needs: inputs as linears see them, products, norms, rotations.

Shapes: K inputs, N outputs; a row is fp32 [K]. The torch form of each is in `arith`, `linear`,
`rope`.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dslearn.formats.numpy_rows import fake_fp8
from dslearn.model.arith import Arith
from dslearn.model.linear import Fused, Linear, Norm

Row: TypeAlias = NDArray[np.float32]
Turn: TypeAlias = NDArray[np.complex64]  # [J] cos + i sin of one position

SMALL = 1 << 17  # multiplications that every BLAS does on the calling thread


def seen(x: Row, arith: Arith, stored_quantised: bool) -> Row:
    """x [..., K] as a quantised linear sees it: `Arith.activations`."""
    wanted = arith.numerics.activations
    if not (stored_quantised if wanted is None else wanted):
        return x
    return fake_fp8(x, arith.block, arith.numerics.fp8_max)


def matrix(weight: Tensor) -> Row:
    """A parameter as the NumPy array that shares its memory."""
    array: Row = weight.numpy()
    return array


def product(a: Row, b: Row) -> Row:
    """a [M, K] times b [K] or [K, N]; a large one by torch.

    NumPy's BLAS would start threads of its own for it, which nobody has limited and which then
    wait for a core beside torch's.
    """
    if a.size * (b.size // b.shape[0]) <= SMALL:
        return a.dot(b)
    out: Row = torch.matmul(torch.from_numpy(a), torch.from_numpy(b)).numpy()
    return out


def weighted(weight: Tensor, x: Row) -> Row:
    """x [K] times a parameter [N, K] -> [N]: `Arith.linear`."""
    return product(matrix(weight), x)


def linear(layer: Linear, x: Row) -> Row:
    """x [K] -> [N]: `Linear.forward`."""
    if layer.quantised:
        x = seen(x, layer.arith, layer.stored_quantised)
    return weighted(layer.weight, x)


def fused(layers: Fused, x: Row) -> Row:
    """x [K] -> the products of all parts [sum of N], one after another: `Fused.__call__`."""
    weight, first = layers.joined(), layers.parts[0]
    if weight is None:
        return np.concatenate([linear(part, x) for part in layers.parts])
    return weighted(weight, seen(x, first.arith, first.stored_quantised))


def norm(layer: Norm, x: Row) -> Row:
    """x [K] over its root mean square, times the weight: `Norm.forward`."""
    return x * (1 / np.sqrt(x.dot(x) / x.size + layer.eps)) * matrix(layer.weight)


def rotate(x: Row, turn: Turn) -> None:
    """Turn the last pairs of x [..., K] in place: (a + ib)(cos + i sin), as `rope.rotate` does.

    The conjugate of `turn` turns back.
    """
    pairs = x[..., -2 * len(turn) :].view(np.complex64)
    np.multiply(pairs, turn, out=pairs)


def best(scores: Row, k: int) -> NDArray[np.int64]:
    """Indices of the k largest of scores [N], best first, equal ones by index: `stable_topk`."""
    return np.argsort(-scores, kind="stable")[:k]
