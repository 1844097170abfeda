"""Between which bounds the integers of a graph lie, where the graph itself says so.

`arange`, `argmax`, comparisons and small dtypes are bounded by what they are; arithmetic on bounded
values is bounded too. An integer that comes from outside may be anything.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import fx

from dslearn.regions.lint.trace import Trace, name, value

Bounds: TypeAlias = tuple[int, int] | None

_SMALL = (torch.uint8, torch.int8, torch.int16, torch.uint16)
_COUNTS = ("argmax", "argmin", "argsort", "topk", "sort", "max", "min", "kthvalue", "mode")
_SAME = frozenset(
    ["view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "expand", "permute", "transpose"]
    + ["t", "slice", "select", "unfold", "repeat", "clone", "alias", "detach", "_to_copy", "copy"]
    + ["gather", "index", "index_select", "embedding", "flip", "roll", "cummax", "cummin"]
    + ["split", "split_with_sizes", "unbind", "lift_fresh", "as_strided", "take"]
)


def bounds(trace: Trace) -> dict[fx.Node, Bounds]:
    """Least and greatest value of every integer or bool tensor, None where nobody knows."""
    known: dict[fx.Node, Bounds] = {}
    for node in trace.graph.nodes:
        try:
            found = _bounds(node, known)
        except (TypeError, ValueError, IndexError):  # a form of the operation not foreseen here
            found = None
        shown = value(node)
        known[node] = _held(found, shown.dtype) if shown else found
    return known


def _held(found: Bounds, dtype: torch.dtype) -> Bounds:
    """Bounds that a dtype can hold: what passes its own wraps around."""
    if dtype is torch.bool:
        return 0, 1
    if dtype not in (*_SMALL, torch.int32, torch.int64):
        return found
    limits = torch.iinfo(dtype)
    if found is not None and limits.min <= found[0] and found[1] <= limits.max:
        return found
    return (limits.min, limits.max) if dtype in _SMALL else None


def _bounds(node: fx.Node, known: dict[fx.Node, Bounds]) -> Bounds:
    """Of one node, whose arguments are in `known`."""
    if node.op != "call_function":
        return None
    operation, args = name(node), node.args
    if not operation:
        return _element(node, known)
    if operation == "arange":
        numbers = [a for a in args if isinstance(a, int)]
        start, end = (0, numbers[0]) if len(numbers) == 1 else numbers[:2]
        return min(start, end), max(start, end - 1)
    if operation in _COUNTS and operation.startswith("arg"):
        return _positions(args)
    if operation in ("zeros", "zeros_like", "new_zeros"):
        return 0, 0
    if operation in ("ones", "ones_like", "new_ones"):
        return 1, 1
    if operation in ("full", "full_like", "new_full", "scalar_tensor", "fill"):
        number = args[0] if operation == "scalar_tensor" else args[-1]
        return (number, number) if isinstance(number, int) else None
    if operation in _SAME:
        return _of(args[0], known)
    if operation in ("cat", "stack", "where", "masked_fill"):
        parts: Any = args[0] if operation in ("cat", "stack") else args
        return _hull([_of(part, known) for part in parts if not _mask(part)])
    if operation in ("cumsum", "sum"):
        return _summed(node, known)
    if operation in ("cumprod", "prod"):
        part = _of(args[0], known)
        return (min(part[0], 0), 1) if part and part[0] >= -1 and part[1] <= 1 else None
    if operation in ("mm", "bmm", "mv", "dot"):
        return _contracted(args, known)
    return None if node.kwargs.get("alpha", 1) != 1 else _arithmetic(operation, args, known)


def _element(node: fx.Node, known: dict[fx.Node, Bounds]) -> Bounds:
    """Of an item of an operation with several results: the positions that it found."""
    source = node.args[0] if node.args else None
    if not isinstance(source, fx.Node):
        return None
    if name(source) in _COUNTS and node.args[1] == 1:
        return _positions(source.args)
    return _of(source.args[0], known) if name(source) in _SAME else None


def _positions(args: Any) -> Bounds:
    searched = value(args[0])
    return (0, max(searched.numel - 1, 0)) if searched else None


def _of(given: Any, known: dict[fx.Node, Bounds]) -> Bounds:
    if isinstance(given, bool | int):
        return int(given), int(given)
    return known.get(given) if isinstance(given, fx.Node) else None


def _mask(given: Any) -> bool:
    shown = value(given)
    return shown is not None and shown.dtype is torch.bool


def _hull(parts: list[Bounds]) -> Bounds:
    real = [part for part in parts if part is not None]
    if not real or len(real) < len(parts):
        return None
    return min(low for low, _ in real), max(high for _, high in real)


def _summed(node: fx.Node, known: dict[fx.Node, Bounds]) -> Bounds:
    part, summed = _of(node.args[0], known), value(node.args[0])
    if part is None or summed is None:
        return None
    return min(part[0] * summed.numel, 0), max(part[1] * summed.numel, 0)


def _contracted(args: Any, known: dict[fx.Node, Bounds]) -> Bounds:
    """Of sums of products over the last dim of the first argument."""
    a, b, rows = _of(args[0], known), _of(args[1], known), value(args[0])
    if a is None or b is None or rows is None:
        return None
    corners = [x * y * rows.shape[-1] for x in a for y in b]
    return min(*corners, 0), max(*corners, 0)


def _arithmetic(operation: str, args: Any, known: dict[fx.Node, Bounds]) -> Bounds:
    a = _of(args[0], known)
    b = _of(args[1], known) if len(args) > 1 else None
    if operation == "clamp" and a is None and len(args) > 2:
        return None if args[1] is None or args[2] is None else (args[1], args[2])
    if operation in ("remainder", "bitwise_and") and b is not None and b[0] >= 0:
        return 0, max(b[1] - (operation == "remainder"), 0)
    if a is None:
        return None
    if operation == "abs":
        return 0, max(abs(a[0]), abs(a[1]))
    if operation == "neg":
        return -a[1], -a[0]
    if operation == "clamp":
        low = a[0] if args[1] is None else args[1]
        high = a[1] if len(args) < 3 or args[2] is None else args[2]
        return min(max(a[0], low), high), max(min(a[1], high), low)
    if b is None:
        return None
    corners = {
        "add": (a[0] + b[0], a[1] + b[1]),
        "sub": (a[0] - b[1], a[1] - b[0]),
        "rsub": (b[0] - a[1], b[1] - a[0]),
        "maximum": (max(a[0], b[0]), max(a[1], b[1])),
        "minimum": (min(a[0], b[0]), min(a[1], b[1])),
        "mul": (min(x * y for x in a for y in b), max(x * y for x in a for y in b)),
    }
    if operation in ("div", "floor_divide", "bitwise_right_shift", "__rshift__"):
        wide = max(abs(a[0]), abs(a[1]))
        return (0 if a[0] >= 0 and b[0] > 0 else -wide), wide
    if operation in ("bitwise_left_shift", "__lshift__") and 0 <= b[1] < 64:
        return min(a[0], a[0] << b[1]), max(a[1], a[1] << b[1])
    return corners.get(operation)
