"""`tensor.reshape`, and `rearrange`, which does it by name, as einops does, with tuples.

Source: docs/reference/nki.md, section "Tensors and views".
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from dslearn.sim import layout
from dslearn.sim.rules import RuleError
from dslearn.sim.values import whole

if TYPE_CHECKING:
    from dslearn.sim.tensor import NkiTensor

Groups = list[tuple[str, ...]]


def rearrange(t: NkiTensor, src: Any, dst: Any, sizes: dict[str, int]) -> NkiTensor:
    """The view of `t` whose dimensions are named by `src`, in the order and grouping of `dst`.

    A pattern is a tuple (or list) of names and tuples of names; `sizes` gives the sizes that the
    shape alone does not, all but one per group.

    Raises:
        RuleError: names that differ, sizes that do not divide, a split that is no view.
    """
    from_groups, to_groups = _groups(src), _groups(dst)
    names = [n for g in from_groups for n in g]
    order = [n for g in to_groups for n in g]
    if sorted(names) != sorted(order) or len(set(names)) != len(names):
        raise RuleError(f"rearrange {src} -> {dst}: each name once on both sides", rule="view")
    if len(from_groups) != t.ndim:
        raise RuleError(f"rearrange {src}: the tensor has {t.ndim} dimensions", rule="view")
    split: list[int] = []
    for group, size in zip(from_groups, t.shape, strict=True):
        split += _sizes(group, size, sizes)
    view = t.reshape(split).permute([names.index(n) for n in order])
    length = dict(zip(names, split, strict=True))
    return view.reshape([prod(length[n] for n in group) for group in to_groups])


def _groups(pattern: Any) -> Groups:
    return [(part,) if isinstance(part, str) else tuple(part) for part in pattern]


def _sizes(group: tuple[str, ...], total: int, sizes: dict[str, int]) -> list[int]:
    known = prod(sizes.get(n, 1) for n in group)
    unknown = [n for n in group if n not in sizes]
    if len(unknown) > 1 or total % known or (not unknown and known != total):
        raise RuleError(
            f"rearrange: {group} of a dimension of {total} with sizes {sizes}: give all but one, "
            "and they must divide it",
            rule="view",
        )
    return [sizes.get(n, total // known) for n in group]


def reshape(t: NkiTensor, shape: Sequence[int]) -> NkiTensor:
    """The same elements in the same order under another shape; one size of it may be -1.

    Raises:
        RuleError: another count, other partitions, or strides that no view has.
        ArgumentError: sizes that are no integers.
    """
    new = layout.infer(whole("reshape", shape), t.size)
    if new is None:
        raise RuleError(f"reshape{tuple(shape)} of {t.shape}: must hold {t.size} elements", "view")
    if t.on_chip and new[0] != t.shape[0]:
        raise RuleError(
            f"reshape{new} of {t.shape}: the partition dimension stays {t.shape[0]}",
            rule="partition-view",
        )
    strides = layout.reshape(t.shape, t.strides, new)
    if strides is None:
        raise RuleError(
            f"reshape{new} of {t.shape} with strides {t.strides}: the elements are not spaced "
            "evenly; copy them first",
            rule="view",
        )
    entire = t.offset == 0 and t.size * t.itemsize == t.storage.data.size
    return t.derive(new, strides, base=new if entire else t.base)
