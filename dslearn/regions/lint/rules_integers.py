"""Integers that must keep more bits than the device gives them.

An index is harmless: positions, counts and row numbers stay far below the limits, and adding to
them, comparing them and gathering with them is what indices are for. Hashes are not.
Source: docs/regions.md, "Lint".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from dslearn.regions.lint.ranges import Bounds, bounds
from dslearn.regions.lint.rule import Hit, Rule
from dslearn.regions.lint.trace import Trace, is_view, name, place, value

RULES = (
    Rule(
        id="int64-arithmetic",
        level="error",
        what="no int64 products, shifts to the left or xor whose result may pass 2^31",
        why="the compiler turns int64 into int32 and drops the upper half without a word",
        fix="compute it on the host in int64 and hand in the result; use int32 where it fits",
        fires="""
def step(ids, factor):
    return ids * factor

inputs = torch.ones(8, dtype=torch.int64), torch.ones(8, dtype=torch.int64)
""",
        legal="""
def step(ids, factor):
    return ids * factor

inputs = torch.ones(8, dtype=torch.int32), torch.ones(8, dtype=torch.int32)
""",
    ),
    Rule(
        id="int-division",
        level="error",
        what="no division or remainder of integers that may pass 2^20",
        why="it is computed with the reciprocal in fp32: the quotient of a large number may be "
        "off by one",
        fix="shift and mask for powers of two (x >> 3, x & 7), else divide on the host",
        fires="""
def step(ids):
    return ids % 1009

inputs = (torch.ones(8, dtype=torch.int64),)
""",
        legal="""
def step(ids):
    return ids & 1023

inputs = (torch.ones(8, dtype=torch.int64),)
""",
    ),
)

INT32 = 2**31 - 1
DIVIDED = 2**20
_WIDENING = frozenset(
    ["mul", "pow", "bitwise_left_shift", "__lshift__", "bitwise_xor", "__xor__", "bitwise_or"]
    + ["__or__", "bitwise_not", "prod", "cumprod", "addcmul", "mm", "bmm", "mv", "dot", "vdot"]
    + ["addmm", "addmv", "addbmm", "baddbmm", "addr"]
)
_ADDING = frozenset(("add", "sub", "rsub"))
_CARRYING = _ADDING | {"mul", "clamp", "where", "_to_copy", "clone"}
_DIVIDING = frozenset(("remainder", "fmod", "floor_divide", "div"))
_INDEXED = frozenset(
    ["index", "index_select", "gather", "embedding", "index_copy", "index_add", "index_put"]
    + ["scatter", "scatter_add", "take"]
)
_INTEGERS = (torch.int32, torch.int64)


def check(trace: Trace) -> Iterator[Hit]:
    """Operations on integers, with what is known of their bounds."""
    known, addresses = bounds(trace), _addresses(trace)
    for node in trace.operations:
        shown = value(node)
        if shown is None or shown.dtype not in _INTEGERS:
            continue
        operation = name(node)
        if operation in _DIVIDING:
            reach = _largest([known.get(one) for one in node.all_input_nodes[:1]])
            if reach is None or reach >= DIVIDED:
                said = f"{operation} of {shown.dtype} {_size(reach)}"
                yield Hit("int-division", place(node), said)
        elif (
            shown.dtype is torch.int64
            and operation in _WIDENING | _ADDING
            and node not in addresses
        ):
            reach = _largest([known[node]])
            large = _constant(node) > INT32
            widening = operation in _WIDENING or node.kwargs.get("alpha", 1) not in (1, -1)
            if large or (reach or 0) > INT32 or (reach is None and widening):
                said = f"{operation} of int64 {_size(reach)}"
                yield Hit("int64-arithmetic", place(node), said)


def _addresses(trace: Trace) -> set[fx.Node]:
    """Values that serve only to find rows: they are less than the number of rows."""
    found: set[fx.Node] = set()
    for node in reversed(trace.operations):
        uses = [
            (name(user) in _INDEXED and node is not user.args[0])
            or (user in found and (is_view(user) or name(user) in _CARRYING))
            for user in node.users
        ]
        if uses and all(uses):
            found.add(node)
    return found


def _largest(parts: list[Bounds]) -> int | None:
    """Greatest magnitude, None when a part has no bounds."""
    if not parts or any(part is None for part in parts):
        return None
    return max(abs(number) for part in parts if part for number in part)


def _constant(node: fx.Node) -> int:
    """Greatest magnitude of the whole numbers among the arguments."""
    given: list[Any] = [one for one in (*node.args, *node.kwargs.values()) if isinstance(one, int)]
    return max((abs(one) for one in given), default=0)


def _size(reach: int | None) -> str:
    return "of unknown size" if reach is None else f"up to {reach:,}"
