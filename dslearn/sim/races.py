"""Who touched the bytes of shared HBM since the last barrier on them, and who must not now.

One byte of marks per byte of data: bits 0 and 1 say that core 0 or 1 wrote it, bits 2 and 3 that it
read it. A barrier on a tensor clears its marks (`Launch.meet`).
Source: docs/reference/nki.md, section "Two cores".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dslearn.sim.dtypes import ONES
from dslearn.sim.program import current
from dslearn.sim.rules import RuleError, enforced
from dslearn.sim.tensor import NkiTensor

if TYPE_CHECKING:
    from dslearn.sim.access import Place


def mark(t: NkiTensor, where: Place, write: bool) -> None:
    """Note that this core touched `t`.

    Raises:
        RuleError: the other core touched it too, one of them wrote, and nothing ordered them.
    """
    program, s = current(), t.storage
    if s.races is None:
        s.races = np.zeros(s.data.size, np.uint8)
    core, full = program.core, ONES[t.itemsize]
    mine = (1 if write else 4) << core
    theirs = (1 | (4 if write else 0)) << (1 - core)
    marks = where.of(s.races, full.dtype)
    unordered = (where.inside(marks) & full * full.dtype.type(theirs)).any()
    if unordered and enforced("lnc-disjoint"):
        raise RuleError(
            f"core {core} {'writes' if write else 'reads'} {t!r}, which core {1 - core} touched "
            "since the last barrier on it: give each core its own part, or call core_barrier",
            rule="lnc-disjoint",
        )
    where.put(s.races, full.dtype, marks | full * full.dtype.type(mine))
