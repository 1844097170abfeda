"""Work on weights that a graph repeats in every call.

Source: docs/regions.md, "Lint".
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import fx

from dslearn.regions.lint.rule import Hit, Rule
from dslearn.regions.lint.trace import Trace, is_pointwise, is_view, name, overwritten, place, value

RULES = (
    Rule(
        id="weight-work",
        level="warn",
        what="no elementwise work on a whole weight inside a graph",
        why="it reads and writes the weight in device memory on every call, for the same result "
        "every time",
        fix="do it once when the model is loaded, or let the kernel decode tile by tile",
        fires="""
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(256, 256, dtype=torch.bfloat16))
        self.scale = nn.Parameter(torch.ones(256, 1))

    def forward(self, x):
        return x @ (self.weight.float() * self.scale)

step, inputs = Layer(), (torch.ones(1, 256),)
""",
        legal="""
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(256, 256, dtype=torch.bfloat16))
        self.scale = nn.Parameter(torch.ones(256, 1))

    def forward(self, x):
        return ((x * self.scale.T).bfloat16() @ self.weight).float()

step, inputs = Layer(), (torch.ones(1, 256),)
""",
    ),
)

LARGE = 1 << 16  # elements from which a matrix counts as a weight to be read once


def check(trace: Trace) -> Iterator[Hit]:
    """The first elementwise step of every chain that starts at a large weight."""
    weights: dict[fx.Node, fx.Node] = {}  # value -> the large weight that it is made of
    fixed: set[fx.Node] = set()  # values that are the same in every call
    written = overwritten(trace)
    for node in trace.graph.nodes:
        given = node.all_input_nodes
        if node.op == "placeholder":
            if node.meta["weight"] and node not in written:
                fixed.add(node)
                if _large(node):
                    weights[node] = node
            continue
        if not all(one in fixed for one in given):
            continue
        fixed.add(node)
        weight = next((weights[one] for one in given if one in weights), None)
        if weight is None or not (is_view(node) or is_pointwise(node)):
            continue
        weights[node] = weight
        first = not any(is_pointwise(one) and one in weights for one in given)
        shown = value(node)
        if first and is_pointwise(node) and shown is not None and _large(node):
            said = f"{name(node) or node.target} of {weight.meta['name']} {list(shown.shape)}"
            yield Hit("weight-work", place(node), f"{said}: {shown.nbytes:,} bytes per call")


def _large(node: fx.Node) -> bool:
    shown = value(node)
    return shown is not None and len(shown.shape) > 1 and shown.numel >= LARGE
