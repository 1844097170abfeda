"""`.ap`, `.view` and `.vector_select`: views written as offset and [stride, count] pairs.

`.ap` addresses the storage and ignores the shape of the view it is called on. With a scalar offset
the start moves by value x (elements below `indirect_dim` of the base shape); with a vector offset
partition p reads row index[p], and the pattern's first stride is ignored.
Source: docs/reference/nki.md, section "Access patterns".
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from dslearn.sim import layout
from dslearn.sim.dtypes import NUMPY, DType
from dslearn.sim.memory import MemoryRegion
from dslearn.sim.registers import VirtualRegister
from dslearn.sim.rules import ArgumentError, BoundsError, NkiValidationError, RuleError
from dslearn.sim.values import whole

if TYPE_CHECKING:
    from dslearn.sim.tensor import NkiTensor


@dataclass(frozen=True)
class Runtime:
    """The runtime part of an access pattern."""

    scalar: Any = None
    vector: NkiTensor | None = None
    dim: int = 0


def ap(t: NkiTensor, pattern: Any, offset: int | None, runtime: Runtime, dtype: DType) -> NkiTensor:
    """The view of `t`'s storage by `pattern`, counted in elements of `dtype`.

    Raises:
        BoundsError: an element outside the storage.
        NkiValidationError: partitions with holes.
        RuleError, ArgumentError: a runtime part that the hardware does not have.
    """
    given = [whole("ap pair", pair) for pair in pattern]
    pairs = [(pair[0], pair[1]) for pair in given if len(pair) == 2]
    if not pairs or len(pairs) < len(given) or any(count < 1 for _, count in pairs):
        raise BoundsError(
            f"ap({pattern}): pairs [stride, count >= 1], outermost first", rule="bounds"
        )
    if t.vector is not None or (t.scalars and runtime != Runtime(dim=runtime.dim)):
        raise RuleError(f"{t!r} is indirect already: apply .ap to the root tensor", rule="view")
    size, new = t.itemsize, NUMPY[dtype].itemsize
    start = t.offset * size // new if offset is None else whole("ap offset", (offset,))[0]
    if t.on_chip:
        _check_partitions(t, pairs, start, t.storage.row_bytes // new)
    base = (*t.base[:-1], t.base[-1] * size // new) if size != new else t.base
    strides, shape = zip(*pairs, strict=True)
    view = t.derive(tuple(shape), tuple(strides), start, base)
    view.dtype = dtype
    _attach(view, runtime)
    fixed = 0 if view.vector is None else 1  # rows of a gather are checked when it runs
    low, high = layout.reach(shape[fixed:], strides[fixed:])
    if start + low < 0 or start + high >= t.storage.data.size // new:
        raise BoundsError(
            f"ap({pattern}, offset={start}): reaches elements {start + low} to {start + high}, "
            f"tensor `{t.name or repr(t)}` has {t.storage.data.size // new} of {dtype}",
            rule="bounds",
        )
    return view


def _check_partitions(t: NkiTensor, pairs: list[tuple[int, int]], start: int, row: int) -> None:
    step, count = pairs[0]
    if count > 1 and step != row:
        raise NkiValidationError(
            f"ap() pattern has invalid partition stride. Partition step {step} must equal tensor "
            f"free dimension size {row}",
            rule="partition-view",
        )
    low, high = layout.reach([c for _, c in pairs[1:]], [s for s, _ in pairs[1:]])
    if start % row + low < 0 or start % row + high >= row:
        raise BoundsError(
            f"ap({pairs}): the free part leaves its partition of {row} elements of {t!r}",
            rule="bounds",
        )


def _attach(view: NkiTensor, runtime: Runtime) -> None:
    scalar, vector = runtime.scalar, runtime.vector
    if scalar is not None and vector is not None:
        raise ArgumentError("ap(): scalar_offset or vector_offset, not both", rule="arguments")
    if scalar is not None:
        check_scalar(scalar)
        if not 0 <= runtime.dim < len(view.base):
            raise BoundsError(f"ap(indirect_dim={runtime.dim}) of {view.base}", rule="bounds")
        view.scalars = ((scalar, prod(view.base[runtime.dim + 1 :])),)
    if vector is not None:
        if runtime.dim != 0 or view.on_chip:
            raise RuleError(
                f"ap(vector_offset, indirect_dim={runtime.dim}) in {view.buffer.value}: gathers "
                "and scatters move rows (dimension 0) of HBM tensors",
                rule="region",
            )
        check_vector(vector, view.shape[0])
        view.vector = (vector, prod(view.base[1:]))


def keep_rows(t: NkiTensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    """Check that a view of indirect tensor `t` leaves its dimension 0, the gathered rows, alone.

    Raises:
        RuleError: it does not.
    """
    if shape[:1] != t.shape[:1] or strides[:1] != t.strides[:1]:
        raise RuleError(
            f"{t!r} is indirect already: choose rows in the offset tile, not in the view",
            rule="view",
        )


def check_scalar(scalar: Any) -> None:
    """A runtime scalar is a register or a (1,1) integer tile in SBUF.

    Raises:
        RuleError: anything else.
    """
    if isinstance(scalar, VirtualRegister):
        return
    tile = hasattr(scalar, "storage") and scalar.buffer is MemoryRegion.sbuf and scalar.size == 1
    if not tile or scalar.dtype not in ("int32", "uint32"):
        raise RuleError(
            f"scalar offset {scalar!r}: a register or a (1,1) int32 or uint32 tile in SBUF",
            rule="operand",
        )


def check_vector(vector: Any, rows: int) -> None:
    """A vector of offsets is an SBUF integer tile with an index per row, column after column.

    A copy takes one column, one index per partition (`check_column`); a transpose takes several.

    Raises:
        RuleError: anything else.
    """
    tile = hasattr(vector, "storage") and vector.buffer is MemoryRegion.sbuf
    if not tile or vector.dtype not in ("int32", "uint32") or vector.size < rows:
        raise RuleError(
            f"vector offset {vector!r} for {rows} rows: an SBUF tile ({rows}, 1) of int32 or "
            "uint32",
            rule="operand",
        )


def check_column(vector: NkiTensor, rows: int) -> None:
    """Check that a vector of offsets has one index per partition for exactly `rows` of them.

    Raises:
        RuleError: it does not.
    """
    if vector.shape[0] != rows or vector.size != rows:
        raise RuleError(
            f"vector offset {vector!r} for {rows} rows: an SBUF tile ({rows}, 1), one index per "
            "partition",
            rule="operand",
        )


def vector_select(t: NkiTensor, dim: int, vector: NkiTensor) -> NkiTensor:
    """Rows `vector[p]` of HBM tensor `t`, shape [P, *t.shape[1:]].

    Raises:
        RuleError: not rows, not HBM, or indirect already.
    """
    if dim != 0 or t.on_chip:
        raise RuleError(f"vector_select({dim}) of {t!r}: dimension 0 of HBM tensors", rule="region")
    if t.is_indirect():
        raise RuleError(f"{t!r} is indirect already: select rows of the root tensor", rule="view")
    check_vector(vector, 1)
    check_column(vector, vector.shape[0])
    view = t.derive((vector.shape[0], *t.shape[1:]), t.strides)
    view.vector = (vector, t.strides[0])
    return view


def view(t: NkiTensor, dtype: DType) -> NkiTensor:
    """The bytes of `t` as `dtype`.

    Raises:
        RuleError: the last dimension is not consecutive or does not rescale.
    """
    if t.is_indirect():
        raise RuleError(f"view({dtype}) of {t!r}: change the dtype before indexing", rule="view")
    old, new = t.itemsize, NUMPY[dtype].itemsize
    if old == new:
        same = t.derive(t.shape, t.strides)
        same.dtype = dtype
        return same
    size = t.shape[-1] * old
    others = (t.offset, *t.strides[:-1])
    if t.strides[-1] != 1 or size % new or any(s * old % new for s in others):
        raise RuleError(
            f"view({dtype}) of {t!r} with strides {t.strides}: the last dimension must be "
            f"consecutive, and offsets and sizes multiples of {new} bytes",
            rule="view",
        )
    base = (*t.base[:-1], t.base[-1] * old // new)
    strides = (*(s * old // new for s in t.strides[:-1]), 1)
    out = t.derive((*t.shape[:-1], size // new), strides, t.offset * old // new, base)
    out.dtype = dtype
    return out
