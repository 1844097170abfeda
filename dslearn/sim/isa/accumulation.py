"""When a matmul adds to its PSUM destination, and when that is undefined.

PSUM accumulates on what the Tensor engine wrote; what another engine left there is a trap.
Source: docs/reference/nki.md, section "Matmul".
"""

from __future__ import annotations

import numpy as np

from dslearn.sim.access import Place, matmul_wrote
from dslearn.sim.dtypes import NUMPY
from dslearn.sim.rules import RuleError, enforced
from dslearn.sim.tensor import NkiTensor


def adds_to(dst: NkiTensor, accumulate: bool | None) -> np.ndarray | None:
    """Where a matmul adds to PSUM view `dst`: bool of its shape, None for nowhere.

    Raises:
        RuleError: accumulation onto something no matmul wrote (rule psum-accumulate).
    """
    if accumulate is not None and not accumulate:
        return None
    mine = matmul_wrote(dst)
    if mine.all():
        return mine
    if accumulate and not enforced("psum-accumulate"):
        return np.ones(dst.shape, bool)
    if accumulate:
        raise RuleError(
            f"nc_matmul accumulate=True onto {dst!r}: {int((~mine).sum())} of {dst.size} elements "
            "were not written by a matmul (zeros of a memset do not count); start the group with "
            "accumulate=False",
            rule="psum-accumulate",
        )
    _check_fresh(dst, mine)
    return mine if mine.any() else None


def _check_fresh(dst: NkiTensor, mine: np.ndarray) -> None:
    """Check that what another engine left in dst is zeros, so that adding and overwriting agree.

    Raises:
        RuleError: other numbers (rule psum-accumulate).
    """
    s = dst.storage
    if s.written is None:
        touched = ~mine
    else:
        touched = ~mine & (Place(dst).of(s.written, np.dtype(f"u{dst.itemsize}")) != 0)
    left = touched.any() and Place(dst).of(s.data, NUMPY[dst.dtype])[touched].astype(bool).any()
    if left and enforced("psum-accumulate"):
        raise RuleError(
            f"nc_matmul accumulate=None onto {dst!r}, which another engine wrote: whether that is "
            "added is undefined on trn2; pass accumulate=False, or add when copying out",
            rule="psum-accumulate",
        )
