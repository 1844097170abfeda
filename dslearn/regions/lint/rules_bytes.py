"""Narrow integers: what may be narrowed, and what may be done with the result.

Source: docs/regions.md, "Lint".
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from dslearn.regions.lint.rule import Hit, Rule
from dslearn.regions.lint.trace import (
    Trace,
    Value,
    is_pointwise,
    is_view,
    name,
    place,
    root,
    value,
    writes,
)

RULES = (
    Rule(
        id="byte-assembly",
        level="error",
        what="bytes are assembled in int32 and narrowed once, at the store",
        why="uint8 values that were narrowed and then joined crash the compiler, or come out "
        "wrong without a word",
        fix="return int32 from the parts, join those, and cast the whole to uint8",
        fires="""
def step(codes, scale):
    return torch.cat((codes.to(torch.uint8), scale.to(torch.uint8)), -1)

inputs = torch.ones(4, 32, dtype=torch.int32), torch.ones(4, 1, dtype=torch.int32)
""",
        legal="""
def step(codes, scale):
    return torch.cat((codes, scale), -1).to(torch.uint8)

inputs = torch.ones(4, 32, dtype=torch.int32), torch.ones(4, 1, dtype=torch.int32)
""",
        code="NCC_IINL902",
    ),
    Rule(
        id="interleaved-narrowing",
        level="error",
        what="no interleaved slices of int32 narrowed to int16 or bytes",
        why="the access pattern of the narrowing copy crashes the compiler",
        fix="pack in fp32 (lo + 256 * hi, exact below 2^24) on contiguous halves, or keep bytes",
        fires="""
def step(codes):
    return (codes[:, 0::2] + 256 * codes[:, 1::2]).to(torch.int16)

inputs = (torch.ones(4, 32, dtype=torch.int32),)
""",
        legal="""
def step(low, high):
    packed = low.float() + 256 * high.float()
    return torch.where(packed >= 32768, packed - 65536, packed).to(torch.int16)

inputs = torch.ones(4, 16, dtype=torch.int32), torch.ones(4, 16, dtype=torch.int32)
""",
        code="NCC_IBCG902",
    ),
)

_BYTES = (torch.uint8, torch.int8)
_NARROW = (*_BYTES, torch.int16, torch.uint16)
_JOINS = frozenset(
    ["cat", "stack", "bitwise_or", "bitwise_xor", "__or__", "add", "bitwise_left_shift"]
    + ["__lshift__", "slice_scatter", "select_scatter", "where"]
)


def check(trace: Trace) -> Iterator[Hit]:
    """Joins of narrowed bytes, and narrowings of interleaved integers."""
    narrowed: dict[fx.Node, torch.dtype] = {}  # byte value -> the wider type that it was cut from
    steps: dict[fx.Node, int] = {}  # int32 value -> its inner stride, where that is above 1
    for node in trace.operations:
        shown = value(node)
        if shown is None:
            continue
        first = next(iter(node.all_input_nodes), None)
        if name(node) == "copy" and isinstance(node.args[1], fx.Node):
            first = node.args[1]  # what is narrowed, if anything is: the other is written
        source = value(first)
        cast = source.dtype if source is not None and name(node) in ("_to_copy", "copy") else None
        if shown.dtype in _BYTES:
            if _joins(node):
                parts = [one for one in node.all_input_nodes if one not in writes(node)]
                wider = next((narrowed[one] for one in parts if one in narrowed), None)
                if wider is not None:
                    said = f"{name(node)} of {shown.dtype} narrowed from {wider}"
                    yield Hit("byte-assembly", place(node), said)
            _follow(node, narrowed)
            if cast is not None and cast.itemsize > 1 and name(node) == "_to_copy":
                narrowed[node] = cast
        if cast is torch.int32 and shown.dtype in _NARROW and first in steps:
            said = f"{cast} of inner stride {steps[first]} to {shown.dtype}"
            yield Hit("interleaved-narrowing", place(node), said)
        if shown.dtype is torch.int32:
            _follow(node, steps)
            if _inner(shown) > 1 >= _inner(_cut(node)):
                steps[node] = _inner(shown)


def _follow(node: fx.Node, known: dict[fx.Node, Any]) -> None:
    """What is known of an argument holds for a view of it and an elementwise step."""
    if is_view(node) or is_pointwise(node):
        found = next((known[one] for one in node.all_input_nodes if one in known), None)
        if found is not None:
            known[node] = found


def _cut(node: fx.Node) -> Value | None:
    """What a node is a slice of; for anything else, the node itself."""
    whole = node.args[0] if name(node) in ("slice", "select") else node
    if node.target is operator.getitem and name(node.args[0]) == "unbind":  # type: ignore[arg-type]
        whole = node.args[0].args[0]  # type: ignore[union-attr]
    return value(whole)


def _inner(shown: Value | None) -> int:
    """Distance of the elements of a row; 0 for a row of one."""
    return shown.stride[-1] if shown is not None and shown.shape and shown.shape[-1] > 1 else 0


def _joins(node: fx.Node) -> bool:
    """Whether an operation puts bytes beside or into others."""
    if name(node) == "copy":  # into a part of something
        target = node.args[0]
        whole = root(target) if isinstance(target, fx.Node) else None
        part, all_of_it = value(target), value(whole)
        return part is not None and all_of_it is not None and part.numel < all_of_it.numel
    return name(node) in _JOINS
