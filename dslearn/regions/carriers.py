"""8-bit floats travel through a graph as their bytes.

The device's compiler takes no float8_e4m3fn, ue8m0 or fp4 tensors, not even to store them. This
pass gives every value of such a dtype a carrier: a uint8 tensor of the same shape and strides.

* A value is carried if and only if it has such a dtype; its fake tensor says so. Nothing is guessed
  from patterns: a graph without such values is returned as it is, and in any other graph the nodes
  that neither take nor give one are copied as they are.
* Inputs and outputs are viewed as bytes outside of the graph, so no input is reinterpreted inside.
* What moves values moves bytes. A cast to another dtype is a table of 256 values, a cast from one
  is a search in at most 255 bounds (`codes`), a bitcast to bytes is nothing at all.
* Anything else, arithmetic or a kernel that was given such a tensor, raises and names the line.

Source: docs/regions.md, "Carriers".
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from dslearn.errors import GraphError
from dslearn.regions.carrier_moves import LIKE, MOVES, NUMBERS, SUMS, arguments
from dslearn.regions.carrier_writer import Writer
from dslearn.regions.lint.rules_dtypes import REFUSED
from dslearn.regions.lint.trace import aten, name, place

Kind: TypeAlias = torch.dtype | None


@dataclass(frozen=True)
class Carried:
    """A graph without 8-bit floats, and which inputs and outputs are the bytes of which dtype."""

    module: fx.GraphModule
    inputs: tuple[Kind, ...]
    outputs: tuple[Kind, ...]


def carry(module: fx.GraphModule) -> Carried:
    """Rewrite an ATen graph whose nodes have their fake tensors in `meta["val"]`.

    Raises:
        GraphError: an operation computes with an 8-bit float.
    """
    nodes = list(module.graph.nodes)
    inputs = tuple(_kind(node, module) for node in nodes if node.op == "placeholder")
    outputs = tuple(_kind(given, module) for given in tree_leaves(nodes[-1].args[0]))
    if any(_kind(node, module) for node in nodes):
        module = _Rewriting(module).result()
    return Carried(module, inputs, outputs)


def _kind(given: Any, module: fx.GraphModule) -> Kind:
    """The dtype that a node's value is carried for; None for what is no 8-bit float."""
    if not isinstance(given, fx.Node):
        return None
    shown = given.meta.get("val")
    if given.op == "get_attr":
        shown = getattr(module, str(given.target), None)
    kinds = {part.dtype for part in tree_leaves(shown) if isinstance(part, Tensor)} & REFUSED
    return next(iter(kinds), None)


class _Rewriting:
    """One pass over a graph; `new[node]` is what stands for a node of the old graph."""

    def __init__(self, module: fx.GraphModule) -> None:
        self.module = module
        values = tree_leaves([node.meta.get("val") for node in module.graph.nodes])
        self.to = Writer(next(one.fake_mode for one in values if hasattr(one, "fake_mode")))
        self.new: dict[fx.Node, fx.Node] = {}

    def kind(self, given: Any) -> Kind:
        return _kind(given, self.module)

    def result(self) -> fx.GraphModule:
        for node in self.module.graph.nodes:
            self.to.line = node
            self.new[node] = self._stands_for(node)
        root = nn.Module()
        for key, value in self.to.constants.items():
            root.register_buffer(key, value)
        return fx.GraphModule(root, self.to.graph)

    def _stands_for(self, node: fx.Node) -> fx.Node:
        if node.op == "get_attr":
            value = getattr(self.module, str(node.target))
            return self.to.constant(
                str(node.target), value.view(torch.uint8) if self.kind(node) else value
            )
        if node.op == "placeholder" and self.kind(node):
            return self._input(node)
        touched = self.kind(node) or any(self.kind(given) for given in node.all_input_nodes)
        if node.op != "call_function" or node.target is operator.getitem or not touched:
            copied = self.to.graph.node_copy(node, self.new.__getitem__)
            if node.target is operator.getitem:
                copied.meta["val"] = copied.args[0].meta["val"][copied.args[1]]  # type: ignore
            return copied
        return self._operation(node)

    def _input(self, node: fx.Node) -> fx.Node:
        shown, carrier = node.meta["val"], self.to.graph.node_copy(node)
        seen = shown.detach().view(torch.uint8)
        is_weight = isinstance(shown, nn.Parameter)
        carrier.meta["val"] = nn.Parameter(seen, requires_grad=False) if is_weight else seen
        return carrier

    def _operation(self, node: fx.Node) -> fx.Node:
        operation, shown, first = name(node), node.meta["val"], next(iter(node.args), None)
        if node.target is aten.view.dtype:
            return self._bitcast(first, shown.dtype)
        if node.target is aten._to_copy.default:
            cast = self._cast(node, first, shown.dtype)
            rest: Any = {key: value for key, value in node.kwargs.items() if key != "dtype"}
            if rest or self.kind(first) is self.kind(node):
                cast = self.to.call(node.target, cast, **rest)
            return self.to.arranged(cast, shown)
        if operation == "copy":
            into: Any = first
            value = self._cast(node, node.args[1], into.meta["val"].dtype)
            return self.to.call(node.target, self.new[into], value, *node.args[2:])
        if operation in MOVES:
            return self._move(node, operation)
        raise self._refused(node, "it computes with them")

    def _bitcast(self, source: Any, to: torch.dtype) -> fx.Node:
        """The same bytes read as `to`: nothing, where both are bytes to the graph."""
        seen = self.new[source]
        wanted = torch.uint8 if to in REFUSED else to
        same = seen.meta["val"].dtype is wanted
        return seen if same else self.to.call(aten.view.dtype, seen, wanted)

    def _cast(self, node: fx.Node, source: Any, to: torch.dtype) -> fx.Node:
        """`source` converted to dtype `to`, either of which may be carried."""
        value, kind = self.new[source], self.kind(source)
        if kind is to or (kind is None and to not in REFUSED):
            return value
        if torch.float4_e2m1fn_x2 in (kind, to):
            raise self._refused(node, "no cast knows its pairs of values")
        if kind is not None:
            value = self.to.decode(value, kind, torch.float32 if to in REFUSED else to)
        return self.to.encode(value, to) if to in REFUSED else value

    def _move(self, node: fx.Node, operation: str) -> fx.Node:
        kind, given = self.kind(node), dict(arguments(node)) | node.kwargs
        if any(given.get(key) for key in SUMS):
            raise self._refused(node, "it adds them up")
        for key, value in given.items():
            if key == MOVES[operation]:
                continue
            mixed = {self.kind(one) for one in tree_leaves(value) if isinstance(one, fx.Node)}
            if mixed - {kind} and operation not in LIKE:
                raise self._refused(node, "it mixes them with other values")

        def put(key: str, value: Any) -> Any:
            if kind and key in NUMBERS and isinstance(value, bool | int | float):
                code = torch.tensor(value, dtype=torch.float32).to(kind).view(torch.uint8)
                return int(code)
            narrow = isinstance(value, torch.dtype) and value in REFUSED
            return torch.uint8 if narrow else self._mapped(value)

        args = [put(key, value) for key, value in arguments(node)]
        return self.to.call(node.target, *args, **{k: put(k, v) for k, v in node.kwargs.items()})

    def _mapped(self, value: Any) -> Any:
        return tree_map_only(fx.Node, self.new.__getitem__, value)

    def _refused(self, node: fx.Node, why: str) -> GraphError:
        kinds = {self.kind(one) for one in (node, *node.all_input_nodes)} - {None}
        path, line = place(node)
        return GraphError(
            f"{path}:{line}: {node.target} on {', '.join(sorted(map(str, kinds)))}: {why}, and a "
            "graph holds their bytes only; cast first, x.to(torch.float32), or keep uint8"
        )
