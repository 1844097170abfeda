"""One forward call on the host: its plan, and what layers hand to the layers after them.

Everything that depends on values is decided here, before the first layer runs: which rows are read
and written, what each query sees, rotations. A layer gets a `Plan`.
Shapes: B batch, T tokens of this call, N entries, K selected, G groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dslearn.model.caches import Pools, Stretch
from dslearn.model.plan import Found, Groups, Plan
from dslearn.model.ring import Span
from dslearn.model.rope import RopeTable
from dslearn.model.state import State


@dataclass
class Learning:
    """What a call with gradients keeps: entries and index keys are all there, as they are read.

    Fields: `entries` [B, N, D] and `index_keys` [B, N, I] of the latest kv source, `scores`
    [B, T, N] of the latest index source; `losses` what the trainer asked for.
    """

    entries: Tensor | None = None
    index_keys: Tensor | None = None
    scores: Tensor | None = None
    losses: list[Tensor] | None = None


@dataclass
class Call:
    """One forward call.

    Args:
        tables: "local" and "compress", the rotations under both thetas.
        span: first positions, lengths and number of tokens.
        state: continued by the call; None for a call with gradients, from position 0.
        fixed: look at as many entries as the state has room for, so that no shape follows from
            the length of a sequence; else at those that the longest one has.
        watched: layers tell their shares.
    Fields:
        `learning`, and chosen [B, T, K] and `candidates`, the latest, of a call with gradients.
    """

    tables: Mapping[str, RopeTable]
    span: Span
    state: State | None
    fixed: bool = False
    watched: bool = False
    chosen: Tensor | None = None
    candidates: Tensor | None = None
    learning: Learning = field(default_factory=Learning)

    def __post_init__(self) -> None:
        span = self.span
        self.positions = span.start[:, None] + torch.arange(span.tokens)  # [B, T]
        self._after = span.start + span.lengths  # tokens of each sequence after this call
        self._window = span.tensors()
        self._plans: dict[int, Plan] = {}
        for table in self.tables.values():
            table.reserve(int(span.start.max()) + span.tokens + 1)

    def plan(self, ratio: int) -> Plan:
        """The plan for layers of this ratio."""
        if ratio not in self._plans:
            self._plans[ratio] = self._plan(ratio)
        return self._plans[ratio]

    def _plan(self, ratio: int) -> Plan:
        table = self.tables["compress" if ratio else "local"]
        cos, sin = table.at(self.positions)
        lanes = self.span.lanes
        plan = Plan(self.positions.int(), cos, sin, self._window, watched=self.watched, lanes=lanes)
        if not ratio:
            return plan
        room = (self.state.max_len if self.state else self.span.tokens) // ratio
        count = room if self.fixed else int(self._after.max()) // ratio
        # A padded token sees no more than its sequence has: the rest of the pool is not written.
        seen = torch.minimum(self.positions + 1, self._after[:, None]) // ratio
        return plan._replace(entries=count, visible=seen.int(), groups=self._groups(ratio, room))

    def _groups(self, ratio: int, room: int) -> Groups:
        """Group g of a sequence is that of its first token's, plus g; `room` entries of each."""
        start, tokens, lanes = self.span.start, self.span.tokens, self.span.lanes
        number = tokens if ratio == 1 else tokens // ratio + 1
        index = start[:, None] // ratio + torch.arange(number)
        closed = (index + 1) * ratio <= self._after[:, None]
        first = (torch.arange(len(start)) if lanes is None else lanes) * (room + 1)
        rows = torch.where(closed, index, room) + first[:, None]
        table = self.tables["compress"]
        return Groups(rows.flatten(), closed, *table.at(index * ratio), self._stretch())

    def _stretch(self) -> Stretch:
        return Stretch(self.span.start, self.span.lengths, self.span.lanes)

    def pools(self, layer: int) -> Pools | None:
        """What `layer` reads and writes; None without a state."""
        return None if self.state is None else self.state.pools(layer)

    def keep(self, found: Iterable[Found]) -> None:
        """What each layer found: what it stored can be undone."""
        assert self.state is not None, "a call with gradients stores nothing"
        for cache, one in zip(self.state.layers, found, strict=True):
            assert one.records is not None, "a layer that stores says what"
            cache.ring.wrote(one.records, self.span)
            if cache.group is not None and one.u is not None and one.g is not None:
                cache.group.wrote(one.u, one.g, self._stretch())
