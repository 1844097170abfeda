"""Reading and writing the elements of a view, with the checks that every instruction shares.

Arrays keep the view's shape and raw dtype. Reads demand written elements, by mask; with two cores,
shared bytes remember who touched them since the last barrier.
Source: docs/reference/nki.md, section "Memories".
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from dslearn.sim import layout, races
from dslearn.sim.dtypes import NUMPY, ONES
from dslearn.sim.memory import MemoryRegion, Storage
from dslearn.sim.numerics.casts import convert, narrow, widen
from dslearn.sim.program import current
from dslearn.sim.registers import VirtualRegister
from dslearn.sim.rules import BoundsError, RuleError
from dslearn.sim.tensor import NkiTensor


def load(t: NkiTensor, what: str = "operand", where: Place | None = None) -> np.ndarray:
    """Elements of `t`, raw: a view of the storage where possible, not to be written.

    `where` is `Place(t, skip=True)` when rows out of range are skipped; they read zero.

    Raises:
        RuleError: an element nobody has written, or one the other core may be writing.
        BoundsError: a runtime offset outside the tensor.
    """
    where = where or Place(t)
    s = t.storage
    if s.written is not None:
        full = ONES[t.itemsize]
        marks = where.inside(where.of(s.written, full.dtype))
        if not (marks == full).all():
            missing = int((marks != full).sum())
            shared = s.region is MemoryRegion.shared_hbm and current().launch.cores > 1
            first = (
                "let core_barrier wait for the core that writes them"
                if shared
                else ("fill the tile before reading it (memset or a copy)")
            )
            raise RuleError(
                f"{what} {t!r}: {missing} of {t.size} elements were never written; {first}",
                rule="uninitialised",
            )
    if s.region is MemoryRegion.shared_hbm and current().launch.cores > 1:
        races.mark(t, where, write=False)
    return where.of(s.data, NUMPY[t.dtype])


def load32(t: NkiTensor, what: str = "operand") -> np.ndarray:
    """Elements of `t` widened to fp32, as the engines compute."""
    return widen(load(t, what))


def store(
    t: NkiTensor,
    values: np.ndarray,
    pe: bool = False,
    where: Place | None = None,
    only: np.ndarray | None = None,
) -> None:
    """Write `values` (raw dtype, as many elements as `t`) and mark them written.

    `pe` says that a matmul wrote them, so that the next matmul may accumulate. `only` (bool, shape
    of `t`) keeps the elements where it is False as they are. `values` may be a view of `t` itself.

    Raises:
        RuleError: a view that writes one element several times.
        BoundsError: a runtime offset outside the tensor.
    """
    fixed = 0 if t.vector is None else 1
    if layout.overlaps(t.shape[fixed:], t.strides[fixed:]):
        raise RuleError(
            f"dst {t!r} is a broadcast view or overlaps itself: each element is written once",
            rule="view",
        )
    where, s, full = where or Place(t), t.storage, ONES[t.itemsize]
    where.put(s.data, NUMPY[t.dtype], values.reshape(t.shape), only)
    whole = where.valid is None and only is None and t.size * t.itemsize == s.data.size
    if whole:
        s.written = None
    elif s.written is not None:
        where.put(s.written, full.dtype, full, only)
    if pe and s.pe is None:
        s.pe = np.zeros(s.data.size, np.uint8)
    if s.pe is not None:
        where.put(s.pe, full.dtype, full if pe else full * 0, only)
    if s.region is MemoryRegion.shared_hbm and current().launch.cores > 1:
        races.mark(t, where, write=True)


def store32(t: NkiTensor, values: np.ndarray) -> None:
    """Write fp32 `values`, rounded once to the dtype of `t`."""
    store(t, narrow(values, NUMPY[t.dtype], tf32=t.dtype == "tfloat32"))


def store_as(t: NkiTensor, values: np.ndarray) -> None:
    """Write raw `values` of any dtype: bit copy when dtypes agree, else through fp32."""
    if t.dtype == "tfloat32":
        store32(t, widen(values))
    else:
        store(t, convert(values, NUMPY[t.dtype]))


def matmul_wrote(t: NkiTensor) -> np.ndarray:
    """Which elements of PSUM view `t` a matmul wrote last: bool, shape of `t`."""
    if t.storage.pe is None:
        return np.zeros(t.shape, bool)
    full = ONES[t.itemsize]
    return Place(t).of(t.storage.pe, full.dtype) == full


class Place:
    """Where the elements of a view are, right now: an offset and strides, or an offset per row.

    `valid` (bool per row, None without a runtime part) is False for what `skip` skips: rows of a
    gather that leave the tensor, or everything when the one runtime offset does.
    """

    __slots__ = ("low", "offset", "rows", "shape", "strides", "valid")

    def __init__(self, t: NkiTensor, skip: bool = False) -> None:
        self.shape, self.strides, self.offset = t.shape, t.strides, t.offset
        self.rows: np.ndarray | None = None  # first element of each row
        self.valid: np.ndarray | None = None
        over = t.storage.ended and t.storage.ended.get(current().core)
        if over:
            raise RuleError(
                f"{t!r} was allocated in a trip of {over} that is over: allocate what outlives a "
                "trip before the loop",
                rule="loop",
            )
        if not t.scalars and t.vector is None:
            return
        moves = [(scalar(source) * step, step) for source, step in t.scalars]
        moved = t.offset + sum(by for by, _ in moves)
        if t.vector is not None:
            self._gather(t, moved, skip)
            return
        inside = _stays_inside(t, moves, moved)
        if not inside and not skip:
            raise BoundsError(
                f"runtime offset of {t!r}: starts at element {moved} and leaves the "
                f"{t.storage.data.size // t.itemsize} elements of its tensor",
                rule="bounds",
            )
        self.offset = moved if inside else t.offset
        self.valid = np.full(t.shape[0], inside)

    def _gather(self, t: NkiTensor, offset: int, skip: bool) -> None:
        assert t.vector is not None, "only views with a vector offset gather"
        index, row = t.vector
        columns = load(index, "vector offset").reshape(index.shape[0], -1).T.reshape(-1)
        starts = offset + columns[: t.shape[0]].astype(np.int64) * row
        limit = t.storage.data.size // t.itemsize
        self.low, high = layout.reach(t.shape[1:], t.strides[1:])
        self.rows, self.valid = starts, (starts + self.low >= 0) & (starts + high < limit)
        if not self.valid.all() and not skip:
            bad = int(np.flatnonzero(~self.valid)[0])
            raise BoundsError(
                f"vector offset of {t!r}: row {bad} starts at element {starts[bad]} of "
                f"{limit}; keep indices in range, or pass oob_mode.skip",
                rule="bounds",
            )

    def inside(self, values: np.ndarray) -> np.ndarray:
        """The rows of `values` (shape of the view) that are not skipped."""
        return values if self.valid is None else values[self.valid]

    def of(self, buffer: np.ndarray, kind: np.dtype[Any]) -> np.ndarray:
        """The elements in `buffer`, seen as `kind`; skipped rows of a gather read zero."""
        if self.rows is None:
            steps = [s * kind.itemsize for s in self.strides]
            return np.ndarray(self.shape, kind, buffer, self.offset * kind.itemsize, steps)
        assert self.valid is not None, "rows come with their validity"
        if self.valid.all():
            found: np.ndarray = self._windows(buffer, kind)[self.rows + self.low]
            return found
        found = np.zeros(self.shape, kind)
        if self.valid.any():
            found[self.valid] = self._windows(buffer, kind)[self.rows[self.valid] + self.low]
        return found

    def put(
        self,
        buffer: np.ndarray,
        kind: np.dtype[Any],
        values: np.ndarray,
        only: np.ndarray | None = None,
    ) -> None:
        """Write `values` (the view's shape, or one for all): rows not skipped, where `only`."""
        if self.valid is not None and not self.valid.any():
            return
        if self.rows is None:
            view = self.of(buffer, kind)
            if only is None:
                view[...] = values
            else:
                np.copyto(view, values, where=only)
            return
        windows, rows = self._windows(buffer, kind), self.inside(self.rows) + self.low
        new = self.inside(np.broadcast_to(values, self.shape))
        if only is not None:
            new = np.where(self.inside(only), new, windows[rows])
        windows[rows] = new

    def _windows(self, buffer: np.ndarray, kind: np.dtype[Any]) -> np.ndarray:
        """[n, *shape[1:]]: the row that would start at each element, from the first that fits."""
        low, high = layout.reach(self.shape[1:], self.strides[1:])
        size = kind.itemsize
        fits = buffer.size // size - (high - low)
        steps = [size, *(s * size for s in self.strides[1:])]
        return np.ndarray((fits, *self.shape[1:]), kind, buffer, -low * size, steps)


def _stays_inside(t: NkiTensor, moves: list[tuple[int, int]], moved: int) -> bool:
    """Whether `t`, moved by runtime offsets, stays in its storage (on chip: in its columns)."""
    low, high = layout.reach(t.shape, t.strides)
    if moved + low < 0 or moved + high >= t.storage.data.size // t.itemsize:
        return False
    if not t.on_chip:
        return True
    row = t.row_elements
    first = t.offset // row * row + sum(by for by, step in moves if step % row == 0)
    low, high = layout.reach(t.shape[1:], t.strides[1:])
    return moved - first + low >= 0 and moved - first + high < row


def scalar(source: Any) -> int:
    """Value of a register or a one-element integer tile."""
    if isinstance(source, VirtualRegister):
        return source.read()
    return int(load(source, "scalar offset").reshape(-1)[0])


def elements(t: NkiTensor) -> int:
    """Elements per partition (per row in HBM)."""
    return prod(t.shape[1:])


def storage_of(array: np.ndarray, region: MemoryRegion, name: str) -> Storage:
    """Storage over the bytes of a contiguous HBM array, all written; shares its memory."""
    return Storage(array.reshape(-1).view(np.uint8), region, 1, name)
