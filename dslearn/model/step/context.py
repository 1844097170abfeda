"""What one step hands from layer to layer: `dslearn.model.call` for a single query.

Shapes: N entries, K selected, J rotated pairs, D width.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dslearn.model.ring import Span
from dslearn.model.state import State
from dslearn.model.step.parts import Row, Turn


@dataclass
class Step:
    """One token at `position` of the only sequence of `state`.

    Fields: `span` as `Call.span`; `local` and `compress` the rotations under both thetas;
    `index_keys` [N, I] by kv source, `selection` [K] and the selected `entries` [K, D] by index
    source; `candidates` [N] bool once the candidate source has run; `trace` a list for `Block`'s
    records, or None.
    """

    position: int
    state: State
    span: Span
    local: Turn
    compress: Turn
    trace: list[dict[str, Any]] | None = None
    index_keys: dict[int, Row] = field(default_factory=dict)
    selection: dict[int, NDArray[np.int64]] = field(default_factory=dict)
    entries: dict[int, Row] = field(default_factory=dict)
    candidates: NDArray[np.bool_] | None = None

    def count(self, ratio: int) -> int:
        """Entries that exist, and that the query sees, after this token."""
        return (self.position + 1) // ratio
