"""Which entries a query attends to: the best by index score, within what bounds them.

Shapes: B batch, T tokens, N entries, K selected. Source: docs/reference/model.md, "Indexer".
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dslearn.model.indexer import candidate_blocks, select


class Bounds(NamedTuple):
    """What bounds the selection of a layer.

    Fields: `topk` entries are selected; `keep` blocks of `size` entries are candidates of a layer
    that `publishes` them, and of those that it `filters` by.
    """

    topk: int
    size: int
    keep: int
    publishes: bool
    filters: bool

    def bind(self, count: int) -> bool:
        """Whether `count` entries are too many for all of them to be selected and published."""
        limited = self.publishes or self.filters
        return count > self.topk or (limited and count > self.size * self.keep)


def everything(visible: Tensor, k: int) -> Tensor:
    """All visible entries, at most k: visible [B, T] -> [B, T, k] int32, ascending, then -1."""
    index = torch.arange(k, dtype=torch.int32)
    return torch.where(index < visible.unsqueeze(-1), index, -1)


def choose(
    scores: Tensor, visible: Tensor, k: int, bounds: Bounds, candidates: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor]:
    """The k best visible entries within `candidates` [B, T, N], which another layer published.

    scores [B, T, N], visible [B, T] -> chosen [B, T, k]; the candidates [B, T, N] that this layer
    publishes, if it does; and the scores, -inf on entries that must not be chosen.
    """
    scores = scores.masked_fill(torch.arange(scores.shape[-1]) >= visible.unsqueeze(-1), -torch.inf)
    published = None
    if bounds.publishes:
        published = candidate_blocks(scores.detach(), visible, bounds.size, bounds.keep)
    if bounds.filters and candidates is not None:
        scores = scores.masked_fill(~candidates, -torch.inf)
    return select(scores.detach(), k), published, scores
