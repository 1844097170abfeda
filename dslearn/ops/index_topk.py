"""Choosing entries and candidate blocks: the twins, and the operations that the kernels serve."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dslearn.kernels import index_topk as kernels
from dslearn.ops.registry import Op


def _seen(scores: Tensor, counts: Tensor) -> Tensor:
    """Scores with -inf from each row's count on."""
    return scores.masked_fill(torch.arange(scores.shape[1]) >= counts[:, None], -torch.inf)


def _best(values: Tensor, count: int) -> Tensor:
    """Mask of the `count` largest of each row above -inf, the lowest places of equal ones."""
    order = torch.sort(values, dim=-1, descending=True, stable=True).indices[:, :count]
    return torch.zeros_like(values, dtype=torch.bool).scatter(1, order, True) & (
        values > -torch.inf
    )


def reference(scores: Tensor, counts: Tensor, k: int, allowed: Tensor | None = None) -> Tensor:
    """The k best visible entries of each query, ascending, -1 where there are fewer.

    Args:
        scores: [T, N] fp32, finite.
        counts: [T] a query sees entries 0 .. count - 1.
        k: entries to select.
        allowed: [T, n] uint8 or bool, 0 for blocks of ceil(N / n) entries to leave out, or None.
    Returns:
        [T, k] int32.
    Source: docs/reference/model.md, "Indexer".
    """
    entries = scores.shape[1]
    seen = _seen(scores, counts)
    if allowed is not None:
        size = -(-entries // allowed.shape[1])
        seen = seen.masked_fill(allowed.repeat_interleave(size, 1)[:, :entries] == 0, -torch.inf)
    index = torch.arange(entries).expand_as(seen).masked_fill(~_best(seen, k), entries)
    index = F.pad(index.sort(1).values, (0, max(0, k - entries)), value=entries)[:, :k]
    return index.masked_fill(index == entries, -1).int()


def blocks_reference(scores: Tensor, counts: Tensor, size: int, keep: int) -> Tensor:
    """Which blocks of `size` entries later layers may select from.

    Args:
        scores: [T, N] fp32, finite.
        counts: [T] a query sees entries 0 .. count - 1.
        size: entries per block.
        keep: blocks to keep; that of the newest visible entry is one of them.
    Returns:
        [T, ceil(N / size)] uint8.
    Source: docs/reference/model.md, "Indexer".
    """
    seen = F.pad(_seen(scores, counts), (0, -scores.shape[1] % size), value=-torch.inf)
    best = seen.unflatten(1, (-1, size)).amax(-1)
    newest = (counts - 1).div(size, rounding_mode="floor")[:, None]
    best = best.masked_fill(torch.arange(best.shape[1]) == newest, torch.inf)
    return _best(best, keep).to(torch.uint8)


def _adapt_topk(
    kernel: Any, scores: Tensor, counts: Tensor, k: int, allowed: Tensor | None = None
) -> Tensor:
    if not scores.shape[1]:
        return torch.full((len(scores), k), -1, dtype=torch.int32)
    mask = None if allowed is None else allowed.to(torch.uint8)
    out: Tensor = kernel(scores, counts.int()[:, None], k, mask)
    return out


def _adapt_blocks(kernel: Any, scores: Tensor, counts: Tensor, size: int, keep: int) -> Tensor:
    out: Tensor = kernel(scores, counts.int()[:, None], size, keep)
    return out


index_topk = Op(
    "index_topk(Tensor scores, Tensor counts, int k, Tensor? allowed=None) -> Tensor",
    twin=reference,
    fake=lambda scores, counts, k, allowed=None: scores.new_empty(
        (scores.shape[0], k), dtype=torch.int32
    ),
    kernel=kernels.index_topk,
    takes={"scores": "fp32 [T, N]", "counts": "i32|i64 [T]", "allowed": "u8|bool [T, B]"},
    adapt=_adapt_topk,
)

candidate_blocks = Op(
    "candidate_blocks(Tensor scores, Tensor counts, int size, int keep) -> Tensor",
    twin=blocks_reference,
    fake=lambda scores, counts, size, keep: scores.new_empty(
        (scores.shape[0], -(-scores.shape[1] // size)), dtype=torch.uint8
    ),
    kernel=kernels.candidate_blocks,
    takes={"scores": "fp32 [T, N]", "counts": "i32|i64 [T]"},
    adapt=_adapt_blocks,
)
