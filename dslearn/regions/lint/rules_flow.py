"""Control flow: what a graph cannot know while it is built, and what it must not depend on.

Source: docs/regions.md, "Lint".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from dslearn.regions.lint.rule import Hit, Rule
from dslearn.regions.lint.trace import Trace, name, place, value

RULES = (
    Rule(
        id="data-dependent",
        level="error",
        what="no .item(), nonzero, boolean index or other shape that depends on values",
        why="a compiled graph has fixed shapes, and reading a value waits for the device",
        fix="keep it on the device: torch.where, a mask, topk with a fixed k, one_hot",
        fires="""
def step(x):
    return x * x.max().item()

inputs = (torch.ones(8),)
""",
        legal="""
def step(x):
    return x * x.max()

inputs = (torch.ones(8),)
""",
    ),
    Rule(
        id="graph-break",
        level="error",
        what="the function is one graph",
        why="every break is a launch of its own, a copy of what crosses it, and code that the "
        "compiler never sees",
        fix="move it out of the function, or decide it before tracing",
        fires="""
def step(x):
    print("rows", len(x))
    return x + 1

inputs = (torch.ones(8),)
""",
        legal="""
def step(x):
    return x + 1

inputs = (torch.ones(8),)
""",
    ),
    Rule(
        id="environment-read",
        level="error",
        what="no environment variable is read while tracing",
        why="its value becomes part of the graph: ranks that differ compile different graphs, "
        "and a change later does nothing",
        fix="read it once into a frozen config and pass that",
        fires="""
def step(x):
    return x * 2 if os.environ.get("DSLEARN_EXAMPLE") else x

inputs = (torch.ones(8),)
""",
        legal="""
doubled = bool(os.environ.get("DSLEARN_EXAMPLE"))

def step(x):
    return x * 2 if doubled else x

inputs = (torch.ones(8),)
""",
    ),
    Rule(
        id="launch-grid",
        level="error",
        what="kernels are launched on a grid of 2",
        why="a logical core is two physical ones: with another grid the second runs an empty "
        "program, which is slow at best",
        fix="launch with kernel[2], and pad the work to an even share",
        fires="""
@torch.library.custom_op("lint_example::double", mutates_args=())
def double(x: torch.Tensor, grid: int) -> torch.Tensor:
    return x * 2

double.register_fake(lambda x, grid: torch.empty_like(x))

def step(x):
    return torch.ops.lint_example.double(x, 1)

inputs = (torch.ones(8),)
""",
        legal="""
@torch.library.custom_op("lint_example::double", mutates_args=())
def double(x: torch.Tensor, grid: int) -> torch.Tensor:
    return x * 2

double.register_fake(lambda x, grid: torch.empty_like(x))

def step(x):
    return torch.ops.lint_example.double(x, 2)

inputs = (torch.ones(8),)
""",
        code="NCC_IXGM002",
    ),
)

_DEPENDS = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)
_INDEXING = frozenset(("index", "index_put", "_index_put_impl"))
_READ = {"_local_scalar_dense": "a value is read", "equal": "values are compared"}
_MASKS = (torch.bool, torch.uint8)


def check(trace: Trace) -> Iterator[Hit]:
    """What was found while tracing, then values that decide and grids."""
    decided = {
        where: Hit(rule, where, said) for rule, where, said in trace.hits if rule == RULES[0].id
    }
    for node in trace.operations:
        if said := _depends(node):
            decided[place(node)] = Hit("data-dependent", place(node), said)
        grid = _grid(node)
        if grid is not None and grid not in (2, (2,), [2]):
            yield Hit("launch-grid", place(node), f"grid {grid}")
    yield from decided.values()
    for rule, where, message in trace.hits:
        if where not in decided or rule == "environment-read":
            yield Hit(rule, where, message)


def _depends(node: fx.Node) -> str:
    """How an operation depends on values, '' when it does not."""
    operation = name(node)
    if operation in _INDEXING:
        indices: Any = node.args[1]
        masks = [one for one in indices if (shown := value(one)) and shown.dtype in _MASKS]
        return "the mask of an index decides a shape" if masks and operation == "index" else ""
    if not any(tag in getattr(node.target, "tags", ()) for tag in _DEPENDS):
        return ""
    return _READ.get(operation, f"values decide the shape of {operation or node.target}")


def _grid(node: fx.Node) -> Any:
    """The launch grid that a kernel was given; None for anything else."""
    if "grid" in node.kwargs:
        return node.kwargs["grid"]
    schema = getattr(node.target, "_schema", None)
    if schema is None or name(node):
        return None
    names = [argument.name for argument in schema.arguments]
    given = dict(zip(names, node.args, strict=False))
    return given.get("grid")
