"""The backend `dslearn` of `torch.compile`: to ATen, 8-bit floats to bytes, lint, then compile.

    import dslearn.regions
    compiled = torch.compile(step, backend="dslearn", fullgraph=True, dynamic=False)

Without a device the graph that would be compiled is run as it is, so that whatever the device would
be handed has been run, compared and linted on a laptop. Where a device answers, the same graph goes
to the backend `neuron`. Without gradients only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest import mock

import torch
from torch import Tensor, fx
from torch._dynamo import lookup_backend, register_backend

from dslearn import backend
from dslearn.errors import GraphError
from dslearn.findings import count
from dslearn.formats.rows import fake_fp8
from dslearn.regions import options
from dslearn.regions.cache import GraphCache, How
from dslearn.regions.carriers import Kind, carry
from dslearn.regions.key import key_of
from dslearn.regions.lint.run import lint_aten
from dslearn.regions.settings import COMPILER, from_environment
from dslearn.regions.tracing import to_aten
from dslearn.regions.written import Written, write

# Dynamo keeps a call of it as it is, instead of following it dozens of times into each graph;
# `to_aten` sees what it does.
torch.compiler.allow_in_graph(fake_fp8)


@dataclass(frozen=True)
class Graph:
    """A compiled graph.

    Attributes:
        run: takes the inputs of Dynamo's graph, gives its outputs.
        written: what is run.
        how: "hit", "load" or "miss" of the cache.
        input_bytes: of all inputs, weights included.
    """

    run: Callable[..., Any]
    written: Written
    how: How
    input_bytes: int


@cache
def graphs() -> GraphCache:
    """This process's graph cache, in the folder that the environment names."""
    return GraphCache(from_environment().cache / "graphs")


def compile_graph(module: fx.GraphModule, inputs: Sequence[Any], kept: GraphCache) -> Graph:
    """Compile what Dynamo captured, or take it from the cache `kept`.

    Raises:
        GraphError: it computes with 8-bit floats, the lint refuses it, or it has no fixed shapes.
    """
    name = backend.current().name
    flags = options.merge(options.OURS, from_environment().compiler)
    written, how = kept.get(key_of(module, (name, flags)), lambda: build(module))
    function = _on_device(written, inputs, flags) if name == "neuron" else written.module().forward
    if torch._C._is_any_autocast_enabled():
        function = _cast_already(function)
    size = sum(x.nbytes for x in inputs if isinstance(x, Tensor))
    return Graph(at_the_boundary(function, written.inputs, written.outputs), written, how, size)


def build(module: fx.GraphModule) -> Written:
    """From Dynamo's graph to the one that is compiled.

    Raises:
        GraphError: see `compile_graph`.
    """
    carried = carry(to_aten(module))
    report = lint_aten(carried.module.graph)
    if report.errors:
        wrong = [str(one) for one in report.findings if one.level == "error"]
        raise GraphError(
            f"the lint refuses this: {count(len(wrong), 'error')}\n" + "\n".join(wrong)
        )
    return write(carried, report.findings)


def at_the_boundary(
    function: Callable[..., Any], inputs: Sequence[Kind], outputs: Sequence[Kind]
) -> Callable[..., Any]:
    """`function` for a caller who has 8-bit floats where it takes and gives their bytes."""
    carried = [i for i, kind in enumerate(inputs) if kind]
    if not carried and not any(outputs):
        return function

    def run(*given: Any) -> Any:
        taken = list(given)
        for i in carried:
            taken[i] = taken[i].view(torch.uint8)
        found = function(*taken)
        return tuple(x.view(kind) if kind else x for x, kind in zip(found, outputs, strict=True))

    return run


def _cast_already(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` for a caller under autocast: the casts are in the graph, where it wants them."""

    def run(*given: Any) -> Any:
        with torch._C._DisableAutocast():
            return function(*given)

    return run


def _on_device(written: Written, inputs: Sequence[Any], flags: str) -> Callable[..., Any]:
    """The graph compiled for the device, which reads its options from the environment."""
    given = [x.view(torch.uint8) if k else x for x, k in zip(inputs, written.inputs, strict=True)]
    with mock.patch.dict(os.environ, {COMPILER: flags}):
        compiled: Callable[..., Any] = lookup_backend("neuron")(
            fx.symbolic_trace(written.module()), given
        )
    return compiled


@register_backend(name="dslearn")
def dslearn_backend(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """`torch.compile(..., backend="dslearn")`; see `compile_graph`."""
    return compile_graph(module, inputs, graphs()).run
