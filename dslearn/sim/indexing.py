"""`tensor[...]`, `slice` and `select`: how indices become offset, shape and strides.

On chip an integer on dimension 0 keeps it (size 1), one on a free dimension drops it unless fewer
than two dimensions would remain; in HBM it drops, down to one dimension. Nothing is clamped.
Source: docs/reference/nki.md, section "Tensors and views".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dslearn.sim import access_pattern
from dslearn.sim.registers import VirtualRegister
from dslearn.sim.rules import ArgumentError, RuleError
from dslearn.sim.values import whole

if TYPE_CHECKING:
    from dslearn.sim.tensor import NkiTensor


@dataclass(frozen=True)
class Ds:
    """`nl.ds(start, size)`: `size` elements from `start`."""

    start: Any
    size: int


def dim_of(t: NkiTensor, dim: int) -> int:
    """`dim` counted from the front.

    Raises:
        RuleError: no such dimension.
    """
    (dim,) = whole("dimension", (dim,))
    if not -t.ndim <= dim < t.ndim:
        raise RuleError(f"dimension {dim} of a tensor with {t.ndim}", rule="bounds")
    return dim % t.ndim


def index(t: NkiTensor, key: Any) -> NkiTensor:
    """The view `t[key]`: ints, slices, `nl.ds`, one Ellipsis.

    Raises:
        RuleError: outside the tensor, or too many indices.
        ArgumentError: a key of another kind, such as a register.
    """
    keys = _expand(t, key if isinstance(key, tuple) else (key,))
    view, dim, left = t, 0, len(keys)
    for part in keys:
        left -= 1
        if isinstance(part, slice | Ds):
            if part != slice(None):
                view = slice_dim(view, dim, *_bounds(t, part, view.shape[dim]))
            dim += 1
            continue
        before = view.ndim
        view = select(view, dim, _integer(t, part))
        # Dropping the last droppable dimension moves a kept one: do not step over it.
        dim += 1 if view.ndim == before else 0
    return view


def _expand(t: NkiTensor, keys: tuple[Any, ...]) -> list[Any]:
    dots = [i for i, k in enumerate(keys) if k is Ellipsis]
    given = len(keys) - len(dots)
    if given > t.ndim or len(dots) > 1:
        raise RuleError(f"{given} indices for {t.ndim} dimensions of {t!r}", rule="bounds")
    at = dots[0] if dots else len(keys)
    rest = [slice(None)] * (t.ndim - given)
    return [*keys[:at], *rest, *keys[at + 1 :]]


def _integer(t: NkiTensor, value: Any) -> int:
    if isinstance(value, VirtualRegister) or hasattr(value, "storage"):
        raise ArgumentError(
            f"{t!r} indexed by a runtime value: use .select(dim, index) or .ap(scalar_offset=...)",
            rule="register",
        )
    if not isinstance(value, int | np.integer) or isinstance(value, bool):
        raise ArgumentError(
            f"{t!r} indexed by {value!r}: ints, slices and nl.ds only", rule="arguments"
        )
    return int(value)


def _bounds(t: NkiTensor, part: slice | Ds, size: int) -> tuple[int, int, int]:
    if isinstance(part, Ds):
        start = _integer(t, part.start)
        return start, start + _integer(t, part.size), 1
    step = 1 if part.step is None else _integer(t, part.step)
    start = 0 if part.start is None else _integer(t, part.start)
    stop = size if part.stop is None else _integer(t, part.stop)
    return (start + size if start < 0 else start), (stop + size if stop < 0 else stop), step


def cut(t: NkiTensor, dim: int, bounds: tuple[int, int, int]) -> NkiTensor:
    """`t.slice(dim, start, end, step)`.

    Raises:
        RuleError: outside the tensor.
        ArgumentError: bounds that are no integers.
    """
    return slice_dim(t, dim_of(t, dim), *whole("slice", bounds))


def slice_dim(t: NkiTensor, dim: int, start: int, end: int, step: int) -> NkiTensor:
    """Elements start, start + step, ... below `end` of dimension `dim`.

    Raises:
        RuleError: outside the tensor, or nothing in it.
    """
    size = t.shape[dim]
    if not (0 <= start < end <= size and step >= 1):
        raise RuleError(
            f"Out-of-bound access for tensor `{t.name or repr(t)}` on dimension {dim}: index range "
            f"[{start}, {end - 1}] exceed dimension size of {size} (step {step}); slices are not "
            "clamped and hold at least one element",
            rule="bounds",
        )
    count = -(-(end - start) // step)
    shape = (*t.shape[:dim], count, *t.shape[dim + 1 :])
    strides = (*t.strides[:dim], t.strides[dim] * step, *t.strides[dim + 1 :])
    return t.derive(shape, strides, t.offset + start * t.strides[dim])


def select(t: NkiTensor, dim: int, position: Any) -> NkiTensor:
    """One index of dimension `dim`; a register or a (1,1) SBUF tile is added at run time.

    Raises:
        RuleError: outside the tensor; at run time, of partitions or of an indirect view.
    """
    dynamic = isinstance(position, VirtualRegister) or hasattr(position, "storage")
    start = 0 if dynamic else _integer(t, position)
    size = t.shape[dim]
    if not -size <= start < size:
        raise RuleError(
            f"Out-of-bound access for tensor `{t.name or repr(t)}` on dimension {dim}: index range "
            f"[{start}, {start}] exceed dimension size of {size}",
            rule="bounds",
        )
    offset = t.offset + (start % size) * t.strides[dim]
    keep = (t.on_chip and dim == 0) or t.ndim <= (2 if t.on_chip else 1)
    middle = (1,) if keep else ()
    shape = (*t.shape[:dim], *middle, *t.shape[dim + 1 :])
    strides = (*t.strides[:dim], *(t.strides[dim : dim + 1] if keep else ()), *t.strides[dim + 1 :])
    view = t.derive(shape, strides, offset)
    if dynamic:
        _check_dynamic(t, dim, position)
        view.scalars = ((position, t.strides[dim]),)
    return view


def _check_dynamic(t: NkiTensor, dim: int, position: Any) -> None:
    access_pattern.check_scalar(position)
    if t.is_indirect():
        raise RuleError(f"{t!r} is indirect already: one runtime index per view", rule="view")
    if t.on_chip and dim == 0:
        raise RuleError(
            f"select(0, {position!r}) of {t!r}: partitions are not chosen at run time; copy all of "
            "them and select a free dimension",
            rule="partition-view",
        )
