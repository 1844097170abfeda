"""Dtypes that the compiler does not take, and bitcasts.

Source: docs/regions.md, "Lint".
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import fx

from dslearn.regions.lint.rule import Hit, Rule
from dslearn.regions.lint.trace import Trace, aten, place, root, value

RULES = (
    Rule(
        id="bitcast-input",
        level="error",
        what="no view(dtype) of an input",
        why="the compiler has no reinterpreting read of an input buffer",
        fix="hand it in with the dtype that is read, or keep bytes and decode by a table",
        fires="""
def step(codes):
    return codes.view(torch.int16) + 1

inputs = (torch.ones(8, dtype=torch.uint8),)
""",
        legal="""
def step(codes):
    return codes + 1

inputs = (torch.ones(8, dtype=torch.uint8).view(torch.int16),)
""",
    ),
    Rule(
        id="fp8-value",
        level="error",
        what="no float8_e4m3fn, ue8m0 or fp4 tensors",
        why="trn2 has its own e4m3 with infinities: the compiler refuses the OCP type even where "
        "it is only stored, and fails when both meet in one graph",
        fix="carry the bytes as uint8 and let a kernel, or a table, read them",
        fires="""
def step(x, w):
    return x @ w.float()

inputs = torch.ones(1, 8), torch.ones(8, 8).to(torch.float8_e4m3fn)
""",
        legal="""
def step(x, w, table):
    return x @ table[w.int()]

codes = torch.arange(256, dtype=torch.uint8)
inputs = (
    torch.ones(1, 8),
    torch.ones(8, 8).to(torch.float8_e4m3fn).view(torch.uint8),
    codes.view(torch.float8_e4m3fn).float(),
)
""",
        code="NCC_EVRF051, NCC_EOCP001",
    ),
    Rule(
        id="float64",
        level="error",
        what="no float64 and complex128 tensors",
        why="no engine computes in float64: it is refused, or rounded to fp32 without a word",
        fix="compute it before the graph, or in fp32",
        fires="""
def step(x):
    return (x.double() / 3).float()

inputs = (torch.ones(8),)
""",
        legal="""
def step(x):
    return x / 3

inputs = (torch.ones(8),)
""",
        code="NCC_ESPP004",
    ),
)

# What a graph cannot hold; `dslearn.regions.carriers` puts bytes in their place.
REFUSED: frozenset[torch.dtype] = frozenset(
    kind
    for name in (
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
        "float4_e2m1fn_x2",
    )
    if (kind := getattr(torch, name, None)) is not None
)
_WIDE = frozenset((torch.float64, torch.complex128))
_BITCAST = aten.view.dtype


def check(trace: Trace) -> Iterator[Hit]:
    """Every tensor once, where its dtype begins."""
    for node in trace.graph.nodes:
        shown = value(node)
        if shown is None:
            continue
        if node.target is _BITCAST and root(node).op == "placeholder":
            source = value(node.args[0])
            if source is not None and source.dtype is not shown.dtype:
                said = f"{root(node).meta['name']}: {source.dtype} read as {shown.dtype}"
                yield Hit("bitcast-input", place(node), said)
        for rule, kinds in (("fp8-value", REFUSED), ("float64", _WIDE)):
            if shown.dtype in kinds and not _inherited(node, kinds):
                if node.op == "placeholder":
                    yield Hit(rule, trace.used(node), f"{node.meta['name']} is {shown.dtype}")
                else:
                    yield Hit(rule, place(node), f"{shown.dtype} begins here")


def _inherited(node: fx.Node, kinds: frozenset[torch.dtype]) -> bool:
    """Whether an argument has one of the dtypes already."""
    given = (value(argument) for argument in node.all_input_nodes)
    return any(shown is not None and shown.dtype in kinds for shown in given)
