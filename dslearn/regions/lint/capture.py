"""From a function to a `Trace`: as one graph if that is possible, else as it runs.

`torch.compile` gives the graph that a region would be, without running it. What it cannot capture
(a Python branch on a value, a print) ends its graph; then the function is run once under the
recorder, so that everything else of it is examined too.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch._dynamo
from torch import Tensor, fx, nn

from dslearn.regions.lint.entry import fresh
from dslearn.regions.lint.environment import watch
from dslearn.regions.lint.place import innermost, of_summary
from dslearn.regions.lint.record import Origin, Replay
from dslearn.regions.lint.running import Function, run
from dslearn.regions.lint.trace import Found, Trace

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
        trace, broken = _compile(function, inputs, storages)
        if trace is None:
            trace = Trace(hits=broken)
            run(trace, function, inputs, storages)
        return trace


def replay(
    module: fx.GraphModule,
    examples: Sequence[Any] = (),
    host: frozenset[int] = frozenset(),
    captured: Sequence[str] = (),
) -> Trace:
    """Trace a graph that `torch.compile` hands to a backend, on its own fake tensors.

    `examples` are the tensors that it was called with, `host` storages in host memory, `captured`
    the names in the closure of the compiled function.
    """
    trace, fake = Trace(), None
    runner = Replay(module, trace)
    given: list[Any] = []
    for node in module.graph.find_nodes(op="placeholder"):
        example = node.meta.get("example_value", node.meta.get("val"))
        real = examples[len(given)] if examples else None
        given.append(example)
        if isinstance(example, Tensor):
            fake = fake or getattr(example, "fake_mode", None)
            there = isinstance(real, Tensor) and real.untyped_storage()._cdata in host
            runner.recorder.input(example, _origin(node, example, there, captured))
    with fake or torch.no_grad(), runner.recorder:
        if fake is None or fake.shape_env is None:
            runner.run(*given)
        else:
            with fake.shape_env.ignore_fresh_unbacked_symbols():
                runner.run(*given)
    return trace


def _origin(node: fx.Node, example: Tensor, host: bool, captured: Sequence[str]) -> Origin:
    """An input, named as the user would write it."""
    source = getattr(getattr(node, "_dynamo_source", None), "name", node.name)
    text = str(source() if callable(source) else source)
    weight = isinstance(example, nn.Parameter) or "_buffers[" in text
    text = re.sub(r"\b(?:_parameters|_buffers|_modules)\['(\w+)'\]", r"\1", text)
    text = re.sub(r"\b[LG]\['(\w+)'\]", r"\1", text)
    for i, name in enumerate(captured):
        text = text.replace(f"function.__closure__[{i}].cell_contents", name)
    return Origin(text.removeprefix("function.").removeprefix("self."), weight, host)


def _compile(
    function: Function, inputs: tuple[Any, ...], host: frozenset[int]
) -> tuple[Trace | None, list[Found]]:
    """The trace of the one graph of the call; None, and why, where there is none."""
    traces: list[Trace] = []

    def backend(module: fx.GraphModule, examples: Sequence[Any]) -> Any:
        captured = getattr(getattr(function, "__code__", None), "co_freevars", ())
        traces.append(replay(module, examples, host, captured))
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
