"""What one forward call hands from layer to layer: positions, rotations, shared selections.

Shapes: B batch, T tokens of this call, N entries, K selected, J rotated pairs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from dslearn.model.arith import straight_through
from dslearn.model.caches import Codec, PlainRows
from dslearn.model.state import State

Rotation = tuple[Tensor, Tensor]  # cos, sin


class Reader(Protocol):
    """Read access to compressed entries: `caches.Entries`, or `DenseEntries` without a state."""

    def take(self, index: Tensor) -> Tensor:
        """Rows index [B, K] -> [B, K, D]; what lies behind an index out of range is arbitrary."""
        ...

    def first(self, count: int) -> Tensor:
        """The first `count` rows -> [B, count, D]."""
        ...


@dataclass
class DenseEntries:
    """Entries of a call without a state: they are all there, rows [B, N, D]."""

    rows: Tensor

    def take(self, index: Tensor) -> Tensor:
        """Rows index [B, K] (out of range counts as the nearest) -> [B, K, D]."""
        count = self.rows.shape[1]
        if count == 0:
            return self.rows.new_zeros(*index.shape, self.rows.shape[-1])
        return self.rows[torch.arange(len(index))[:, None], index.clamp(0, count - 1)]

    def first(self, count: int) -> Tensor:
        """The first `count` rows."""
        return self.rows[:, :count]


@dataclass
class Call:
    """One forward call.

    Fields: start [B] first positions; lengths [B] real tokens of each row; positions [B, T];
    `local` and `compress` the rotations of the queries under both thetas; `entries` and
    `index_keys` by kv source layer; `selection` [B, T, K] by index source layer; `candidates`
    [B, T, N] once the candidate source has run; `index_losses` what a trainer asked for.
    """

    start: Tensor
    lengths: Tensor
    positions: Tensor
    state: State | None
    local: Rotation
    compress: Rotation
    entries: dict[int, Reader] = field(default_factory=dict)
    index_keys: dict[int, Reader] = field(default_factory=dict)
    selection: dict[int, Tensor] = field(default_factory=dict)
    index_scores: dict[int, Tensor] = field(default_factory=dict)
    candidates: Tensor | None = None
    index_losses: list[Tensor] | None = None
    trace: list[dict[str, Any]] | None = None

    def visible(self, ratio: int) -> Tensor:
        """Entries each query sees: floor((p + 1) / ratio), [B, T]."""
        return (self.positions + 1) // ratio

    def count(self, ratio: int) -> int:
        """Entries that exist after this call in the longest sequence."""
        return int((self.start + self.lengths).max()) // ratio


def stored(codec: Codec, x: Tensor) -> tuple[Tensor, Tensor]:
    """x [..., D] as records, and as every later reader will see it (gradients pass through)."""
    if isinstance(codec, PlainRows):
        return x.detach(), x
    records = codec.pack(x.detach())
    return records, straight_through(x, codec.unpack(records))
