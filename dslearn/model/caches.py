"""Static caches of one layer: compressed entries and the open group; `ring` holds the window.

Every cache is a fixed tensor with a lane per sequence and one scratch slot past the end of each:
rows that a ragged batch pads are stored there, so that no shape ever depends on data. Records are
the real bytes (docs/reference/formats.md, "Cache records"), or plain fp32 rows when caches are not
quantised.
While a block is marked, whatever is appended is kept aside too, so that it can be undone.

Shapes: B batch, L lanes, T tokens of this call, N entries, G groups, D width, K read, M rows.
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


def of_lanes(data: Tensor, lanes: Tensor | None) -> Tensor:
    """data [L, ...] -> [B, ...] of lanes [B], a copy; all of them and no copy by default."""
    return data if lanes is None else data.index_select(0, lanes)


def taken(data: Tensor, index: Tensor, lanes: Tensor | None = None) -> Tensor:
    """Rows index [B, T, K] of data [L, N + 1, stride], in lanes [B] -> [B, T, K, stride].

    An index out of range takes the nearest row.
    """
    count = data.shape[1]
    first = (torch.arange(len(index)) if lanes is None else lanes).int().view(-1, 1, 1) * count
    rows = index.clamp(0, count - 1).int() + first
    return (
        data.view(-1, data.shape[-1])
        .index_select(0, rows.flatten())
        .view(*index.shape, data.shape[-1])
    )


class Stretch(NamedTuple):
    """Which tokens a call counts: first positions and lengths [B], and their lanes, or all."""

    start: Tensor
    lengths: Tensor
    lanes: Tensor | None = None


def wait(open_u: Tensor, open_g: Tensor, u: Tensor, g: Tensor, stretch: Stretch) -> None:
    """After the tokens u, g [B, T, D] of a stretch: keep the last of each row if it is unpaired.

    open_u and open_g [L, D] are written, with 0 and -inf where nothing waits.
    """
    start, lengths, lanes = stretch
    batch, last = torch.arange(len(u)), (lengths - 1).clamp(min=0)
    moved, odd = (lengths > 0)[:, None], ((start + lengths) & 1 == 1)[:, None]
    for kept, tokens, empty in ((open_u, u, 0.0), (open_g, g, -torch.inf)):
        new = tokens[batch, last].masked_fill(~odd, empty)
        put(kept, torch.where(moved, new, of_lanes(kept, lanes)), lanes)


def put(data: Tensor, rows: Tensor, lanes: Tensor | None) -> None:
    """Write rows [B, ...] to lanes [B] of data [L, ...], or to all of it.

    A lane that is named twice gets the same row twice.
    """
    if lanes is None:
        data.copy_(rows)
    else:
        data.index_copy_(0, lanes, rows)


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
        self._written: list[tuple[Tensor, Tensor, Stretch]] = []

    def update(self, u: Tensor, g: Tensor, stretch: Stretch) -> None:
        """Count the tokens u, g [B, T, D] of a stretch."""
        self.wrote(u, g, stretch)
        wait(self.u, self.g, u, g, stretch)

    def wrote(self, u: Tensor, g: Tensor, stretch: Stretch) -> None:
        """These tokens have been counted: remember them, to undo it."""
        if self._saved is not None:
            self._written.append((u, g, stretch))

    def mark(self) -> None:
        """Remember this moment."""
        self._saved, self._written = (self.u.clone(), self.g.clone()), []

    def rollback(self, positions: Tensor) -> None:
        """Return to `positions` [B], none before the mark."""
        assert self._saved is not None, "rollback without mark: State.rollback checks this"
        self.u.copy_(self._saved[0])
        self.g.copy_(self._saved[1])
        written, self._written = self._written, []
        for u, g, (start, lengths, lanes) in written:
            left = (of_lanes(positions, lanes) - start).clamp(min=0)
            self.update(u, g, Stretch(start, torch.minimum(left, lengths), lanes))

    def commit(self) -> None:
        """Forget the mark."""
        self._saved, self._written = None, []
