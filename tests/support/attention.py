"""One call of sparse attention: random arguments, and the answer by loops in double precision."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.support import records
from tests.support.kernels import matrix


@dataclass(frozen=True)
class Case:
    """Arguments of `ops.sparse_attn`, in its order."""

    q: Tensor
    position: Tensor
    window: Tensor
    held: Tensor
    sink: Tensor
    width: int
    round_p: bool = False
    entries: Tensor | None = None
    selected: Tensor | None = None

    def but(self, **changes: Any) -> Case:
        """The same with other fields."""
        return replace(self, **changes)

    def arguments(self) -> tuple[Any, ...]:
        """For the operation and its twin."""
        return tuple(vars(self).values())

    def columns(self) -> tuple[Any, ...]:
        """For the kernel, which takes columns of int32."""
        found = [self.q, self.position.int()[:, None], self.window, self.held.int()[:, None]]
        found += [self.sink[:, None], self.width, self.round_p]
        if self.selected is not None:
            found += [self.entries, self.selected.int()]
        return tuple(found)


def case(  # noqa: PLR0913 - sizes
    tokens: int, heads: int, dim: int, width: int = 8, chosen: int = 0, start: int = 50,
    dtype: torch.dtype = torch.float32,
) -> Case:  # fmt: skip
    """`tokens` queries from position `start`, after what a window of `width` held before them."""
    held = torch.arange(start - width + 1, start + tokens)
    entries = selected = None
    if chosen:
        entries = records.packed(2, 2 * chosen + 3, dim, "compressed")
        order = np.random.default_rng(3)
        rows = [np.sort(order.permutation(len(entries))[:chosen]) for _ in range(tokens)]
        selected = torch.from_numpy(np.stack(rows))
    q = matrix(1, tokens * heads, dim, dtype).view(tokens, heads, dim)
    window = records.packed(4, len(held), dim, "window")
    sink = matrix(5, 1, heads)[0]
    position = torch.arange(start, start + tokens)
    return Case(
        q, position, window, held.where(held >= 0, -1), sink, width, False, entries, selected
    )


def by_hand(c: Case) -> np.ndarray:
    """[T, H, D] in float64, one key after another."""
    dim = c.q.shape[2]
    near = records.values(c.window.numpy(), "window", dim)
    far = None if c.entries is None else records.values(c.entries.numpy(), "compressed", dim)
    out = np.zeros(c.q.shape)
    for t, p in enumerate(c.position.tolist()):
        keys = [near[j] for j, h in enumerate(c.held.tolist()) if h >= 0 and p - c.width < h <= p]
        if far is not None and c.selected is not None:
            keys += [far[j] for j in c.selected[t].tolist() if 0 <= j < len(far)]
        for h in range(c.q.shape[1]):
            scores = [float(c.q[t, h].double().numpy() @ k) / math.sqrt(dim) for k in keys]
            top = max([*scores, float(c.sink[h])])
            weights = [math.exp(s - top) for s in scores]
            total = sum(weights) + math.exp(float(c.sink[h]) - top)
            for weight, key in zip(weights, keys, strict=True):
                out[t, h] += weight / total * key
    return out
