"""Pieces of a graph, each a graph that can be compiled and run on its own."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_map_only

from dslearn.errors import UsageError
from dslearn.regions.workshop.case import Case, describe
from dslearn.regions.workshop.rerun import Spec

Known = dict[fx.Node, Any]  # node -> its value, with a `Spec` in the place of every tensor


class _Recorder(fx.Interpreter):
    """Runs a graph and describes every value as it is when it appears."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.known: Known = {}

    def run_node(self, n: fx.Node) -> Any:
        """Execute a node."""
        found = super().run_node(n)
        if isinstance(found, nn.Module):
            raise UsageError(f"{n.name} is a graph inside the graph: capture that one by itself")
        self.known[n] = tree_map_only(Tensor, lambda one: describe([one])[0], found)
        return found


def record(case: Case) -> Known:
    """Run a graph once and describe all of its values.

    Raises:
        UsageError: it has graphs inside, or fails on its inputs.
    """
    recorder = _Recorder(case.module)
    try:
        with torch.no_grad():
            recorder.run(*case.inputs())
    except UsageError:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UsageError(f"the graph fails on inputs that were drawn for it: {said}") from error
    return recorder.known


def cut(case: Case, known: Known, kept: Collection[fx.Node], shown: Collection[fx.Node]) -> Case:
    """The piece that computes the nodes `kept` and returns the values of those in `shown`.

    What kept nodes read from others becomes a placeholder of that node's name, or a constant where
    it is a number. An operation with several results returns each of them.
    """
    graph = fx.Graph()
    specs: list[Spec] = []
    here: dict[fx.Node, Any] = {}
    computed = [node for node in case.module.graph.nodes if node in kept]
    for source in dict.fromkeys(one for node in computed for one in node.all_input_nodes):
        if source not in kept:

            def placeholder(spec: Spec, name: str = source.name) -> fx.Node:
                specs.append(spec.alone(len(specs)))
                part = name in (node.target for node in graph.nodes)  # of several results
                return graph.placeholder(f"{name}_input{len(specs)}" if part else name)

            here[source] = tree_map_only(Spec, placeholder, known[source])
    for node in computed:
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), here.__getitem__)
        here[node] = graph.create_node(node.op, node.target, args, kwargs, name=node.name)
    outputs = [
        part for node in computed if node in shown for part in _tensors(here[node], known[node])
    ]
    graph.output(tuple(outputs))
    module = fx.GraphModule(case.module, graph)
    return replace(case, module=module, specs=tuple(specs))


def _tensors(node: fx.Node, known: Any) -> Iterator[fx.Node]:
    """The tensors that a node of a piece stands for."""
    if isinstance(known, Spec):
        yield node
    elif isinstance(known, list | tuple):
        for i, part in enumerate(known):
            if isinstance(part, Spec):
                yield node.graph.call_function(operator.getitem, (node, i))
