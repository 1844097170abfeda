"""The window ring: the last W keys of each sequence, slot = position mod W.

Shapes: B batch, T tokens of a call, W window, D width.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from dslearn.model.caches import Codec, storage, store


class Window(NamedTuple):
    """Where a call's tokens lie in a ring and what each sees of it: tensors of one `Span`.

    Fields: `before`, `slots`, `stored`, `held` and `hidden` as in `Span`.
    """

    before: Tensor
    slots: Tensor
    stored: Tensor
    held: Tensor
    hidden: Tensor


class Span:
    """Where a call's tokens lie in a ring; worked out once, used by every layer.

    Args:
        start: first positions [B].
        lengths: real tokens of each row [B], at most `tokens`.
        tokens: T.
        window: W.
        lanes: of the caches, one for each row [B]; default all, in order.
    """

    def __init__(
        self, start: Tensor, lengths: Tensor, tokens: int, window: int, lanes: Tensor | None = None
    ) -> None:
        self.start, self.lengths, self.tokens, self.window = start, lengths, tokens, window
        self.lanes = lanes
        self._base = (torch.arange(len(start)) if lanes is None else lanes)[:, None] * (window + 1)

    @property
    def before(self) -> Tensor:
        """Ring rows of the W-1 positions before start, oldest first: flat [B * (W-1)].

        What stands for a position below 0 is arbitrary: `hidden` and `held` say so.
        """
        earlier = self.start[:, None] + torch.arange(1 - self.window, 0)
        return (earlier % self.window + self._base).flatten()

    @cached_property
    def stored(self) -> Tensor:
        """Which tokens are stored [B, T]: real, and not overwritten within the call."""
        t = torch.arange(self.tokens)
        return (t < self.lengths[:, None]) & (t >= self.lengths[:, None] - self.window)

    @cached_property
    def slots(self) -> Tensor:
        """Ring rows of the tokens, the scratch row where one is not stored: flat [B * T]."""
        slots = (self.start[:, None] + torch.arange(self.tokens)) % self.window
        return (torch.where(self.stored, slots, self.window) + self._base).flatten()

    @property
    def held(self) -> Tensor:
        """Positions of the keys that queries read as records: int32 [B, W - 1 + T], -1 for none.

        Of one token, the ring's W slots after it is stored; of more, the W-1 keys before the call
        and then its own.
        """
        first = self.start[:, None] + 1 - self.window
        if self.tokens > 1:
            held = first + torch.arange(self.window - 1 + self.tokens)
        else:
            held = first + (torch.arange(self.window) - first) % self.window
        return held.clamp(min=-1).int()

    @property
    def hidden(self) -> Tensor:
        """Whether each query's W window slots lie before position 0: [B, T, W] bool."""
        positions = self.start[:, None] + torch.arange(self.tokens)
        return positions.unsqueeze(-1) + torch.arange(1 - self.window, 1) < 0

    def before_position(self, positions: Tensor) -> Tensor:
        """How many tokens of each row [B] lie before the positions of its lane, one per lane."""
        mine = positions if self.lanes is None else positions[self.lanes]
        return torch.minimum((mine - self.start).clamp(min=0), self.lengths)

    def tensors(self) -> Window:
        """All of it."""
        return Window(self.before, self.slots, self.stored, self.held, self.hidden)


class Ring:
    """One layer's ring of a batch."""

    def __init__(self, batch: int, window: int, codec: Codec) -> None:
        self.batch, self.window, self.codec = batch, window, codec
        self.data = storage(batch, window, codec)
        self._keys: Tensor | None = None  # the rows decoded, as long as that is up to date
        self._saved: Tensor | None = None
        self._written: list[tuple[Tensor, Span]] = []

    @property
    def keys(self) -> Tensor:
        """All rows as their readers see them [B, W + 1, D], in the order of the slots."""
        if self._keys is None:
            self._keys = self.codec.unpack(self.data)
        return self._keys

    def append(self, records: Tensor, span: Span) -> None:
        """Store records [B, T, stride] of the span's tokens."""
        self.wrote(records, span)
        store(self.data, span.slots, span.stored, records)

    def wrote(self, records: Tensor, span: Span) -> None:
        """These records have been stored in `data`: remember them, to undo it."""
        if self._saved is not None:
            self._written.append((records, span))
        self._keys = None

    def append_one(self, record: Tensor, key: Tensor, span: Span) -> None:
        """Store the record [stride] of a single token, and what it decodes to, the key [D]."""
        if self._saved is not None:
            self._written.append((record[None, None], span))
        slot = int(span.start[0]) % self.window
        self.keys[0, slot] = key
        self.data[0, slot] = record

    def clear(self, lane: int) -> None:
        """Zero the rows of a lane."""
        self.data[lane] = 0
        self._keys = None

    def mark(self) -> None:
        """Remember this moment."""
        self._saved, self._written = self.data.clone(), []

    def rollback(self, positions: Tensor) -> None:
        """Return to `positions` [B], none before the mark."""
        assert self._saved is not None, "rollback without mark: State.rollback checks this"
        self.data.copy_(self._saved)
        self._keys = None
        written, self._written = self._written, []
        for records, span in written:
            kept = span.before_position(positions)
            if bool(kept.any()):
                self.append(records, Span(span.start, kept, span.tokens, self.window, span.lanes))

    def commit(self) -> None:
        """Forget the mark."""
        self._saved, self._written = None, []
