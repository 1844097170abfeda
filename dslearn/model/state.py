"""The decoding state of a batch: positions, per-layer caches, Engram history.

Shapes: B batch; caches are layer-major, each layer's own contiguous tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from dslearn.config import Config
from dslearn.errors import StateError
from dslearn.formats.records import Kind, Record
from dslearn.model.caches import Codec, Entries, OpenGroup, PlainRows, Pools, of_lanes
from dslearn.model.engram_hash import DEAD
from dslearn.model.ring import Ring
from dslearn.numerics import Numerics


@dataclass
class LayerCache:
    """What one layer keeps: every layer a ring; kv sources entries, index keys, an open group."""

    ring: Ring
    entries: Entries | None = None
    index_keys: Entries | None = None
    group: OpenGroup | None = None


def window_codec(cfg: Config, numerics: Numerics) -> Codec:
    """The codec of window keys under `numerics`."""
    if not numerics.caches:
        return PlainRows(cfg.head_dim)
    return _record("window", cfg.head_dim, numerics.fp8_max)


def entry_codecs(cfg: Config, numerics: Numerics) -> tuple[Codec, Codec]:
    """The codecs of compressed entries and of index keys under `numerics`."""
    if not numerics.caches:
        return PlainRows(cfg.head_dim), PlainRows(cfg.index_head_dim)
    entry = _record("compressed", cfg.head_dim, numerics.fp8_max)
    return entry, _record("index", cfg.index_head_dim)


@cache
def _record(kind: Kind, dim: int, fp8_max: int = 448) -> Record:
    return Record(kind, dim, fp8_max=fp8_max)


class State:
    """Everything a batch of sequences has left behind so far.

    Args:
        cfg, numerics: of the model that writes it.
        batch: sequences B; each advances by its own lengths.
        max_len: tokens a sequence may hold; caches are allocated for it once.

    Raises:
        StateError: batch or max_len below 1.
    """

    def __init__(self, cfg: Config, numerics: Numerics, batch: int, max_len: int) -> None:
        if batch < 1 or max_len < 1:
            raise StateError(f"batch={batch}, max_len={max_len}: both must be at least 1")
        if max_len > cfg.max_position_embeddings:
            raise StateError(
                f"max_len={max_len}: this model knows {cfg.max_position_embeddings} positions "
                "(max_position_embeddings)"
            )
        self.batch, self.max_len = batch, max_len
        self.numerics = numerics
        self.ratios = cfg.ratios
        self.sources = [cfg.kv_source(i) for i in range(cfg.num_hidden_layers)]
        self.reach = cfg.engram_max_ngram_size - 1
        self._marked: Tensor | None = None
        with torch.inference_mode(False):  # of one kind wherever this is: graphs tell them apart
            self.positions = torch.zeros(batch, dtype=torch.int64)
            self.layers = [self._layer(cfg, i) for i in range(cfg.num_hidden_layers)]
            # Compressed ids of all tokens, after `reach` dead slots: "before the start".
            self.history = torch.zeros(batch, self.reach + max_len + 1, dtype=torch.int64)
        self.history[:, : self.reach] = DEAD

    def _layer(self, cfg: Config, layer: int) -> LayerCache:
        batch, ratio = self.batch, cfg.ratios[layer]
        cache = LayerCache(Ring(batch, cfg.sliding_window, window_codec(cfg, self.numerics)))
        if layer in cfg.kv_source_layer_ids:
            entry, index = entry_codecs(cfg, self.numerics)
            cache.entries = Entries(batch, self.max_len // ratio, entry)
            cache.index_keys = Entries(batch, self.max_len // ratio, index)
            cache.group = OpenGroup(batch, cfg.head_dim) if ratio == 2 else None
        return cache

    def pools(self, layer: int) -> Pools:
        """The tensors that `layer` reads and writes, in its own caches and those of its source."""
        own, source = self.layers[layer], self.sources[layer]
        if source is None:
            return Pools(own.ring.data)
        far, group = self.layers[source], own.group
        assert far.entries is not None and far.index_keys is not None, "kv source has caches"
        waiting = () if group is None else (group.u, group.g)
        return Pools(own.ring.data, far.entries.data, far.index_keys.data, *waiting)

    @property
    def position(self) -> int:
        """Tokens seen so far, when all sequences agree; `positions` [B] holds each one's."""
        first = int(self.positions[0])
        if self.batch > 1 and bool((self.positions != first).any()):
            raise StateError(
                f"positions {self.positions.tolist()} differ: read state.positions of a ragged "
                "batch"
            )
        return first

    def check_room(self, lengths: Tensor, lanes: Tensor | None = None) -> None:
        """Raise StateError if lengths [B] more tokens in lanes [B], or all, do not fit."""
        after = of_lanes(self.positions, lanes) + lengths
        if bool((after > self.max_len).any()):
            raise StateError(
                f"positions would reach {after.tolist()}, the state holds max_len={self.max_len}: "
                "make it with a larger max_len"
            )

    def advance(self, lengths: Tensor, lanes: Tensor | None = None) -> None:
        """Count lengths [B] tokens as seen, in lanes [B] or in all."""
        if lanes is None:
            self.positions += lengths
        else:
            self.positions.index_add_(0, lanes, lengths)

    def clear(self, lane: int) -> None:
        """Make a lane as it was at first, for another sequence.

        Raises:
            StateError: a block is marked: `rollback` would bring the old sequence back.
        """
        if self._marked is not None:
            raise StateError("clear in a marked block: call state.commit() or rollback() before")
        for layer in self.layers:
            layer.ring.clear(lane)
            for entries in (layer.entries, layer.index_keys):
                if entries is not None:
                    entries.data[lane] = 0
            if layer.group is not None:
                layer.group.u[lane], layer.group.g[lane] = 0, -torch.inf
        self.positions[lane] = 0
        self.history[lane, self.reach :] = 0

    def mark(self) -> None:
        """Begin a block: from here on `rollback` can undo. An open block is committed first."""
        self._marked = self.positions.clone()
        for part in self._undoable():
            part.mark()

    def rollback(self, position: int | Sequence[int] | Tensor) -> None:
        """Return every sequence to `position` (one for all, or one each), caches byte for byte.

        Raises:
            StateError: without a mark, before it, past the present position, or a number of
                positions that is neither one nor the batch.
        """
        if self._marked is None:
            raise StateError("rollback without mark: call state.mark() before the block")
        target = torch.as_tensor(position, dtype=torch.int64)
        if target.shape not in ((), (1,), (self.batch,)):
            raise StateError(
                f"rollback to {target.tolist()}: must be one position, or one for each of the "
                f"{self.batch} sequences"
            )
        target = target.repeat(self.batch) if target.numel() == 1 else target.clone()
        if bool((target < self._marked).any()) or bool((target > self.positions).any()):
            raise StateError(
                f"rollback to {target.tolist()}: must lie between the mark "
                f"{self._marked.tolist()} and the present {self.positions.tolist()}"
            )
        for part in self._undoable():
            part.rollback(target)
        for layer, ratio in zip(self.layers, self.ratios, strict=True):
            for entries in (layer.entries, layer.index_keys):
                if entries is not None:
                    entries.truncate(target // ratio)
        slots = torch.arange(self.history.shape[1])
        self.history.masked_fill_(slots >= (target + self.reach)[:, None], 0)
        self.positions.copy_(target)

    def commit(self) -> None:
        """End the block: what is in the caches stays."""
        self._marked = None
        for part in self._undoable():
            part.commit()

    def _undoable(self) -> list[Ring | OpenGroup]:
        rings: list[Ring | OpenGroup] = [cache.ring for cache in self.layers]
        return rings + [cache.group for cache in self.layers if cache.group is not None]
