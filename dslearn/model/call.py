"""What one forward call hands from layer to layer: positions, rotations, shared selections.

Shapes: B batch, T tokens of this call, N entries, K selected, J rotated pairs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from dslearn.model.arith import straight_through
from dslearn.model.caches import Codec, PlainRows
from dslearn.model.ring import Span
from dslearn.model.state import State

Rotation = tuple[Tensor, Tensor]  # cos, sin


class Reader(Protocol):
    """Read access to compressed entries: `caches.Entries`, or `DenseEntries` without a state."""

    def flat(self, index: Tensor) -> Tensor:
        """Flat rows [B * K] of index [B, K]; one out of range becomes some row."""
        ...

    def rows(self, flat: Tensor) -> Tensor:
        """Flat rows [M] -> [M, D]."""
        ...

    def first(self, count: int) -> Tensor:
        """The first `count` rows -> [B, count, D]."""
        ...


@dataclass
class DenseEntries:
    """Entries of a call without a state: they are all there, values [B, N, D]."""

    values: Tensor

    def flat(self, index: Tensor) -> Tensor:
        """Flat rows [B * K] of index [B, K]; one out of range becomes the nearest."""
        batch, count = self.values.shape[:2]
        base = torch.arange(batch)[:, None] * count
        return (index.clamp(0, max(count - 1, 0)) + base).flatten()

    def rows(self, flat: Tensor) -> Tensor:
        """Flat rows [M] -> [M, D]."""
        return self.values.flatten(0, 1)[flat]

    def first(self, count: int) -> Tensor:
        """The first `count` rows -> [B, count, D]."""
        return self.values[:, :count]


@dataclass
class Call:
    """One forward call.

    Fields: start [B] first positions; lengths [B] real tokens of each row; positions [B, T];
    `window` W; `local` and `compress` the rotations of the queries under both thetas; `entries` and
    `index_keys` by kv source layer; `selection` [B, T, K] by index source layer; `candidates`
    [B, T, N] once the candidate source has run; `index_losses` what a trainer asked for, `shares`
    what somebody who looks on did: each layer's attention to its keys.
    """

    start: Tensor
    lengths: Tensor
    positions: Tensor
    window: int
    state: State | None
    local: Rotation
    compress: Rotation
    entries: dict[int, Reader] = field(default_factory=dict)
    index_keys: dict[int, Reader] = field(default_factory=dict)
    selection: dict[int, Tensor] = field(default_factory=dict)
    index_scores: dict[int, Tensor] = field(default_factory=dict)
    candidates: Tensor | None = None
    span: Span = field(init=False)
    _keys: dict[int | None, tuple[Tensor, Tensor | None]] = field(default_factory=dict)
    index_losses: list[Tensor] | None = None
    shares: list[Tensor] | None = None
    trace: list[dict[str, Any]] | None = None

    def __post_init__(self) -> None:
        self.span = Span(self.start, self.lengths, self.positions.shape[1], self.window)

    def hidden(self, chooser: int | None, source: int | None) -> tuple[Tensor, Tensor | None]:
        """Which keys of a query to mask [B, T, W + K], and the flat rows of the K selected ones.

        Worked out once per index source (`chooser`); `source` is the kv source it selects from.
        """
        if chooser not in self._keys:
            valid, rows = self.span.visible, None
            if chooser is not None and source is not None:
                chosen = self.selection[chooser]
                valid = torch.cat((valid, chosen >= 0), 2)
                rows = self.entries[source].flat(chosen.flatten(1))
            self._keys[chooser] = ~valid, rows
        return self._keys[chooser]

    def visible(self, ratio: int) -> Tensor:
        """Entries each query sees: floor((p + 1) / ratio), [B, T]."""
        return (self.positions + 1) // ratio

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest sequence after this call."""
        return int((self.start + self.lengths).max())

    def count(self, ratio: int) -> int:
        """Entries that exist after this call in the longest sequence."""
        return self.longest // ratio


def through(codec: Codec, x: Tensor) -> Tensor:
    """x [..., D] as a reader of its records will see it (gradients pass through)."""
    if isinstance(codec, PlainRows):
        return x
    return straight_through(x, codec.unpack(codec.pack(x.detach())))
