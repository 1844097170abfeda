"""Batches: the training tokens cut into chunks, each epoch in a new order."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Chunks:
    """Chunks of T + 1 tokens from one long stream of files; ranks take turns.

    The place in the order is a count of tokens, so a run resumes where it stopped, also with
    another chunk length.
    """

    def __init__(self, ids: NDArray[np.uint16], seed: int) -> None:
        self.ids, self.seed = ids, seed
        self._order: tuple[tuple[int, int], NDArray[np.int64]] | None = None

    def batch(self, seen: int, length: int, rows: int) -> Tensor:
        """The `rows` chunks that follow `seen` tokens: int64 [rows, length + 1]."""
        per_epoch = (len(self.ids) - 1 - length) // length
        first = seen // length
        out = np.stack([self._chunk(first + r, length, per_epoch) for r in range(rows)])
        return torch.from_numpy(out.astype(np.int64))

    def _chunk(self, number: int, length: int, per_epoch: int) -> NDArray[np.uint16]:
        epoch, place = divmod(number, per_epoch)
        key = (epoch, length)
        if self._order is None or self._order[0] != key:
            rng = np.random.default_rng([self.seed, epoch, length])
            self._order = (key, rng.permutation(per_epoch))
        # Another epoch cuts at other places, so chunk borders move over the text.
        shift = (epoch * 97) % length
        start = int(self._order[1][place]) * length + shift
        return self.ids[start : start + length + 1]
