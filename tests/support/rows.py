"""Rows that an offset tile chooses, for tests of the simulator's DMA."""

from __future__ import annotations

from typing import Any

import numpy as np

from dslearn.sim.tensor import NkiTensor
from tests.support.sim import filled


def column(rows: Any, kind: str = "int32") -> NkiTensor:
    """An offset tile (P, 1)."""
    return filled(np.array(rows)[:, None], kind=kind)


def rows_of(t: NkiTensor, index: NkiTensor, start: int = 0, width: int | None = None) -> NkiTensor:
    """Rows `index` of 2-D HBM tensor `t`, `width` columns from `start` on."""
    row = t.shape[1]
    width = row if width is None else width
    pattern = [[row, index.shape[0]], [1, width]]
    return t.ap(pattern, offset=start, vector_offset=index, indirect_dim=0)
