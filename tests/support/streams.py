"""What tests of the stream kernels share: streams and numbers of known values, float64 formulas.

The formulas follow docs/reference/model.md, "Streams" and "Gate", in NumPy and double precision.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dslearn.kernels.hc_mixes import hc_mixes
from dslearn.ops.hc_mixes import place
from tests.support.kernels import matrix

Wide = NDArray[np.float64]
EPS, HC_EPS = 1e-20, 1e-6  # those of V4.1
DTYPES = [torch.float32, torch.bfloat16]


def streams(
    seed: int, rows: int, count: int, width: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Normal values [rows, count, width]."""
    return matrix(seed, rows * count, width, dtype).view(rows, count, width)


def numbers(seed: int, *shape: int) -> Tensor:
    """Normal values in fp32."""
    return matrix(seed, 1, int(np.prod(shape))).view(shape)


def parameters(seed: int, count: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """fn [M, count · width], base [M] and scale [3] of a sublayer, M = count (count + 2)."""
    outputs, inputs = count * (count + 2), count * width
    fn = matrix(seed, outputs, inputs) / inputs**0.5
    return fn, numbers(seed + 1, outputs) / 2, numbers(seed + 2, 3).abs() + 0.5


def placed(parts: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """The same with fn as the kernel reads it."""
    return place(parts[0]), parts[1], parts[2]


def engram(
    seed: int, rows: int, count: int, width: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    """h, kv and weight of an Engram's gate."""
    kv = matrix(seed + 1, rows, (count + 1) * width, dtype)
    return streams(seed, rows, count, width, dtype), kv, numbers(seed + 2, count, width)


def wide(x: Tensor) -> Wide:
    """float64 of any tensor."""
    return x.double().numpy()


def sigmoid(x: Wide) -> Wide:
    return 1 / (1 + np.exp(-x))


def balanced(logits: Wide, iterations: int = 20, eps: float = HC_EPS) -> Wide:
    """Sinkhorn of [.., S, S], one matrix after another, as the page says it."""
    out = np.empty_like(logits)
    for at in np.ndindex(*logits.shape[:-2]):
        c = np.exp(logits[at] - logits[at].max(1, keepdims=True))
        c = c / c.sum(1, keepdims=True) + eps
        c = c / (c.sum(0) + eps)
        for _ in range(iterations - 1):
            c = c / (c.sum(1)[:, None] + eps)
            c = c / (c.sum(0)[None, :] + eps)
        out[at] = c
    return out


def mixes(
    h: Tensor, parts: tuple[Tensor, Tensor, Tensor], iterations: int = 20, hc_eps: float = HC_EPS
) -> tuple[Wide, Wide, Wide]:
    """pre, post and comb of streams [R, S, d]."""
    rows, s, _ = h.shape
    fn, base, scale = (wide(part) for part in parts)
    flat = wide(h).reshape(rows, -1)
    m = (flat @ fn.T) / np.sqrt((flat**2).mean(1, keepdims=True) + EPS)
    pre, post = m[:, :s] * scale[0] + base[:s], m[:, s : 2 * s] * scale[1] + base[s : 2 * s]
    logits = (m[:, 2 * s :] * scale[2] + base[2 * s :]).reshape(rows, s, s)
    comb = balanced(logits, iterations, hc_eps)
    return sigmoid(pre) + hc_eps, 2 * sigmoid(post), comb


def mixed(h: Tensor, parts: tuple[Tensor, Tensor, Tensor], **changes: float) -> tuple[Tensor, ...]:
    """What the kernel makes of streams and parameters, with the constants of V4.1."""
    arguments = {"norm_eps": EPS, "hc_eps": HC_EPS, "iterations": 20} | changes
    found: tuple[Tensor, ...] = hc_mixes(h, *placed(parts), **arguments)
    return found


def check_mixes(found: Sequence[Tensor], exact: Sequence[Wide], bound: float = 2e-6) -> None:
    """pre, post and comb are fp32 and no further than `bound` from double precision."""
    for name, one, other in zip(("pre", "post", "comb"), found, exact, strict=True):
        assert one.dtype == torch.float32 and tuple(one.shape) == other.shape
        wrong = np.abs(wide(one) - other).max()
        assert wrong <= bound, f"{name} is {wrong:g} away"


def gated(h: Tensor, kv: Tensor, weight: Tensor) -> tuple[Wide, Wide]:
    """h + gate · value, and the gate."""
    rows, s, d = h.shape
    x, both = wide(h), wide(kv)
    key, value = both[:, : s * d].reshape(rows, s, d), both[:, None, s * d :]
    lengths = np.sqrt(((x**2).mean(2) + EPS) * ((key**2).mean(2) + EPS) * d)
    a = (x * key * wide(weight)).sum(2) / lengths
    gate = sigmoid(np.copysign(np.sqrt(np.maximum(np.abs(a), 1e-6)), a))
    return x + gate[:, :, None] * value, gate


def padded_with_nan(x: Tensor, rows: int = 8) -> Tensor:
    """`x` with rows of NaN behind it."""
    rest = x.new_full((rows - x.shape[0], *x.shape[1:]), float("nan"))
    return torch.cat([x, rest])
