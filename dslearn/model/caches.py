"""Static caches of one layer: compressed entries and the open group; `ring` holds the window.

Every cache is a fixed tensor with one scratch slot past its end: rows that a ragged batch pads
are stored there, so that no shape ever depends on data. Records are the real bytes
(docs/reference/formats.md, "Cache records"), or plain fp32 rows when caches are not quantised.
While a block is marked, whatever is appended is kept aside too, so that it can be undone.

Shapes: B batch, T tokens of this call, N entries, G groups, D width, K read, M rows.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

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


class Pools(NamedTuple):
    """The caches that one layer reads and writes, as tensors.

    Fields: `ring` [B, W + 1, stride]; `entries` and `index_keys` [B, N + 1, stride] of the layer's
    kv source, None without compression; `open_u` and `open_g` [B, D] of the token that waits, for
    a kv source of ratio 2.
    """

    ring: Tensor
    entries: Tensor | None = None
    index_keys: Tensor | None = None
    open_u: Tensor | None = None
    open_g: Tensor | None = None


def storage(batch: int, slots: int, codec: Codec) -> Tensor:
    """Zeroed rows [batch, slots + 1, stride]; the last slot of each sequence is scratch."""
    dtype = torch.float32 if isinstance(codec, PlainRows) else torch.uint8
    return torch.zeros(batch, slots + 1, codec.stride, dtype=dtype)


def store(data: Tensor, rows: Tensor, valid: Tensor, records: Tensor) -> None:
    """Write records [B, T, stride] to the flat rows [B * T] of data, zeros where not valid.

    Rows that are not valid must point at scratch slots: they may repeat, and hold zeros after.
    """
    records = torch.where(valid.unsqueeze(-1), records, torch.zeros_like(records))
    data.view(-1, data.shape[-1]).index_copy_(0, rows, records.flatten(0, 1))


def taken(data: Tensor, index: Tensor) -> Tensor:
    """Rows index [B, T, K] of data [B, N + 1, stride] -> [B, T, K, stride].

    An index out of range takes the nearest row.
    """
    count = data.shape[1]
    rows = index.clamp(0, count - 1) + torch.arange(len(data)).view(-1, 1, 1) * count
    return (
        data.view(-1, data.shape[-1])
        .index_select(0, rows.flatten())
        .view(*index.shape, data.shape[-1])
    )


def wait(open_u: Tensor, open_g: Tensor, u: Tensor, g: Tensor, span: tuple[Tensor, Tensor]) -> None:
    """After lengths[b] tokens u, g [B, T, D] from start[b]: keep the last one if it is unpaired.

    `span` is (start, lengths), [B] each; open_u and open_g [B, D] are written, with 0 and -inf
    where nothing waits.
    """
    start, lengths = span
    batch, last = torch.arange(len(u)), (lengths - 1).clamp(min=0)
    moved, odd = (lengths > 0)[:, None], ((start + lengths) & 1 == 1)[:, None]
    for kept, tokens, empty in ((open_u, u, 0.0), (open_g, g, -torch.inf)):
        kept.copy_(torch.where(moved, tokens[batch, last].masked_fill(~odd, empty), kept))


class Entries:
    """Compressed keys (or index keys) of each sequence: entry j is row j."""

    def __init__(self, batch: int, entries: int, codec: Codec) -> None:
        self.codec = codec
        self.data = storage(batch, entries, codec)

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
        """Count lengths[b] tokens u, g [B, T, D] from start[b] on."""
        self.wrote(u, g, start, lengths)
        wait(self.u, self.g, u, g, (start, lengths))

    def wrote(self, u: Tensor, g: Tensor, start: Tensor, lengths: Tensor) -> None:
        """These tokens have been counted: remember them, to undo it."""
        if self._saved is not None:
            self._written.append((u, g, start, lengths))

    def mark(self) -> None:
        """Remember this moment."""
        self._saved, self._written = (self.u.clone(), self.g.clone()), []

    def rollback(self, positions: Tensor) -> None:
        """Return to `positions` [B], none before the mark."""
        assert self._saved is not None, "rollback without mark: State.rollback checks this"
        self.u.copy_(self._saved[0])
        self.g.copy_(self._saved[1])
        written, self._written = self._written, []
        for u, g, start, lengths in written:
            self.update(u, g, start, torch.minimum((positions - start).clamp(min=0), lengths))

    def commit(self) -> None:
        """Forget the mark."""
        self._saved, self._written = None, []
