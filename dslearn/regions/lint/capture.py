"""From a function to a `Trace`: as one graph if that is possible, else as it runs.

`torch.compile` gives the graph that a region would be, without running it. What it cannot capture
(a Python branch on a value, a print) ends its graph; then the function is run once under the
recorder, so that everything else of it is examined too.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch._dynamo
from torch import Tensor, fx

from dslearn.regions.lint.entry import fresh
from dslearn.regions.lint.environment import watch
from dslearn.regions.lint.origin import of_input
from dslearn.regions.lint.place import innermost, of_summary
from dslearn.regions.lint.running import Function, run
from dslearn.regions.lint.trace import Found, Trace
from dslearn.regions.tracing import trace

_DYNAMO = {
    "capture_scalar_outputs": True,
    "capture_dynamic_output_shape_ops": True,
    "suppress_errors": False,
}


class _Captured(Exception):
    """Stops a call before its graph runs."""


def capture(function: Function, inputs: tuple[Any, ...], host: Iterable[Tensor] = ()) -> Trace:
    """Trace `function(*inputs)`; the tensors `host` live in host memory.

    Raises:
        UsageError: the function itself fails on these inputs.
    """
    storages = frozenset(tensor.untyped_storage()._cdata for tensor in host)
    with torch.no_grad(), warnings.catch_warnings(), torch._dynamo.config.patch(_DYNAMO):
        warnings.simplefilter("ignore")
        found, broken = _compile(function, inputs, storages)
        if found is None:
            found = Trace(hits=broken)
            run(found, function, inputs, storages)
        return found


def _compile(
    function: Function, inputs: tuple[Any, ...], host: frozenset[int]
) -> tuple[Trace | None, list[Found]]:
    """The trace of the one graph of the call; None, and why, where there is none."""
    traces: list[Trace] = []
    captured = getattr(getattr(function, "__code__", None), "co_freevars", ())

    def backend(module: fx.GraphModule, examples: Sequence[Any]) -> Any:
        there = {
            node
            for node, real in zip(module.graph.find_nodes(op="placeholder"), examples, strict=True)
            if isinstance(real, Tensor) and real.untyped_storage()._cdata in host
        }
        traced = trace(module, lambda node, given: of_input(node, given, node in there, captured))
        traces.append(Trace(traced.graph))
        return _stop

    compiled = torch.compile(fresh(function), backend=backend, fullgraph=True, dynamic=False)
    found: list[Found] = []
    try:
        with watch(found):
            compiled(*inputs)
    except _Captured:
        traces[0].hits = found
        return traces[0], []
    except torch._dynamo.exc.BackendCompilerFailed:
        return None, []  # a graph that cannot be repeated on fake tensors: see how it runs
    except Exception as error:
        return None, [why_broken(error)]
    return None, []  # nothing is computed


def _stop(*_: Any) -> Any:
    raise _Captured("the graph is known")


def why_broken(error: Exception) -> Found:
    """Why torch made no single graph of a function, and where: (rule, place, reason)."""
    where = innermost(of_summary(getattr(error, "real_stack", None)))
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = " ".join(lines[:2]) if lines else type(error).__name__
    said = said.replace("Explanation: ", "").rstrip(".")
    rule = "data-dependent" if "data-dep" in said.lower() else "graph-break"
    return rule, where, said if len(said) <= 160 else said[:157] + "..."
