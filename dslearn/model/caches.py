"""Static caches of one layer: compressed entries and the open group; `ring` holds the window.

Every cache is a fixed tensor with one scratch slot past its end: rows that a ragged batch pads
are stored there, so that no shape ever depends on data. Records are the real bytes
(docs/reference/formats.md, "Cache records"), or plain fp32 rows when caches are not quantised.
While a block is marked, whatever is appended is kept aside too, so that it can be undone.

Shapes: B batch, T tokens of this call, N entries, G groups, D width, K read, M rows.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Codec(Protocol):
    """How a row becomes bytes: `dslearn.formats.records.Record`, or `PlainRows`."""

    @property
    def stride(self) -> int:
        """Elements of one stored row."""
        ...

    def pack(self, x: Tensor) -> Tensor:
        """Rows [..., D] -> stored rows [..., stride]."""
        ...

    def unpack(self, data: Tensor) -> Tensor:
        """Stored rows [..., stride] -> fp32 rows [..., D]."""
        ...


class PlainRows:
    """The codec that does nothing: fp32 rows as they are."""

    def __init__(self, dim: int) -> None:
        self.stride = dim

    def pack(self, x: Tensor) -> Tensor:
        """x [..., D] unchanged."""
        return x

    def unpack(self, data: Tensor) -> Tensor:
        """data [..., D] unchanged."""
        return data


def storage(batch: int, slots: int, codec: Codec) -> Tensor:
    """Zeroed rows [batch, slots + 1, stride]; the last slot of each sequence is scratch."""
    dtype = torch.float32 if isinstance(codec, PlainRows) else torch.uint8
    return torch.zeros(batch, slots + 1, codec.stride, dtype=dtype)


def store(data: Tensor, rows: Tensor, valid: Tensor | None, records: Tensor) -> None:
    """Write records [B, T, stride] to the flat rows [B * T] of data, zeros where not valid.

    Rows that are not valid must point at scratch slots: they may repeat, and hold zeros after.
    """
    if valid is not None:
        records = torch.where(valid.unsqueeze(-1), records, torch.zeros_like(records))
    data.view(-1, data.shape[-1]).index_copy_(0, rows, records.flatten(0, 1))


class Entries:
    """Compressed keys (or index keys) of each sequence: entry j is row j."""

    def __init__(self, batch: int, entries: int, codec: Codec) -> None:
        self.codec = codec
        self.data = storage(batch, entries, codec)
        self._base = torch.arange(batch)[:, None] * (entries + 1)

    def append(self, records: Tensor, index: Tensor, valid: Tensor) -> None:
        """Store records [B, G, stride] at rows index [B, G] where valid [B, G]."""
        index = torch.where(valid, index, self.data.shape[1] - 1)
        store(self.data, (index + self._base).flatten(), valid, records)

    def flat(self, index: Tensor) -> Tensor:
        """Flat rows [B * K] of index [B, K]; one out of range becomes the nearest."""
        return (index.clamp(0, self.data.shape[1] - 1) + self._base).flatten()

    def rows(self, flat: Tensor) -> Tensor:
        """Flat rows [M] -> [M, D]."""
        return self.codec.unpack(self.data.view(-1, self.data.shape[-1]).index_select(0, flat))

    def first(self, count: int) -> Tensor:
        """The first `count` rows -> [B, count, D]."""
        return self.codec.unpack(self.data[:, :count])

    def truncate(self, counts: Tensor) -> None:
        """Zero every row from counts[b] on, as if it had never been written."""
        rows = torch.arange(self.data.shape[1])
        self.data.masked_fill_((rows >= counts[:, None]).unsqueeze(-1), 0)


class OpenGroup:
    """Projections of the token that waits for its partner (ratio 2): value u and score g [B, D].

    A closed group leaves u = 0 and g = -inf.
    """

    def __init__(self, batch: int, dim: int) -> None:
        self.u = torch.zeros(batch, dim)
        self.g = torch.full((batch, dim), -torch.inf)
        self._saved: tuple[Tensor, Tensor] | None = None
        self._written: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []

    def update(self, u: Tensor, g: Tensor, start: Tensor, lengths: Tensor) -> None:
        """After lengths[b] tokens u, g [B, T, D] from start[b]: keep the last if it is unpaired."""
        if self._saved is not None:
            self._written.append((u, g, start, lengths))
        last = (lengths - 1).clamp(min=0)
        batch = torch.arange(len(u))
        moved, odd = (lengths > 0)[:, None], ((start + lengths) % 2 == 1)[:, None]
        new_u = torch.where(odd, u[batch, last], torch.zeros_like(self.u))
        new_g = torch.where(odd, g[batch, last], torch.full_like(self.g, -torch.inf))
        self.u = torch.where(moved, new_u, self.u)
        self.g = torch.where(moved, new_g, self.g)

    def mark(self) -> None:
        """Remember this moment."""
        self._saved, self._written = (self.u, self.g), []

    def rollback(self, positions: Tensor) -> None:
        """Return to `positions` [B], none before the mark."""
        assert self._saved is not None, "rollback without mark: State.rollback checks this"
        self.u, self.g = self._saved
        written, self._written = self._written, []
        for u, g, start, lengths in written:
            self.update(u, g, start, torch.minimum((positions - start).clamp(min=0), lengths))

    def commit(self) -> None:
        """Forget the mark."""
        self._saved, self._written = None, []
