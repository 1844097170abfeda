"""Compiled graphs beside the captured ones, on the data of the call: what a capture runs.

A compiler may be wrong without a word, and a step's logits need not show it: a store that goes
astray is read much later, or never by the first token. So every graph call of a capture is made
twice, and all that it gives and all that it writes is compared.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx, nn

from dslearn.errors import GraphError
from dslearn.regions import timing
from dslearn.regions.lint.capture import replay
from dslearn.regions.lint.trace import overwritten
from dslearn.regions.workshop.rerun import compare

PART = "capture (compared)"  # of a step, for who measures it: no stage is charged for the copies

_comparing: ContextVar[bool] = ContextVar("dslearn_comparing", default=False)


@contextmanager
def comparing() -> Iterator[None]:
    """Graph calls in the `with` block are made twice and compared, in its own thread (or task)."""
    token = _comparing.set(True)
    try:
        yield
    finally:
        _comparing.reset(token)


def beside(
    name: str, compiled: Callable[..., Any], captured: Callable[..., Any]
) -> Callable[..., Any]:
    """`compiled`; while `comparing`, beside `captured` run on copies of the inputs.

    Args:
        name: of the region, for the error.
        compiled: what the compiler made.
        captured: the same graph as it was traced, run operation by operation.

    Raises:
        GraphError: in a call: outputs or written inputs differ. Floats may, by the tolerance of
            their dtype in `workshop.rerun.TOLERANCES`; bytes and integers may not by a bit.
    """

    written = cache(lambda: _written(captured))

    def run(*inputs: Any) -> Any:
        if not _comparing.get():
            return compiled(*inputs)
        # Both runs draw the same random numbers, and the caller's go on after one of them.
        with timing.part(PART), torch.random.fork_rng(devices=()):
            copies = _copies(inputs, written())
            expected = captured(*copies)
        got = compiled(*inputs)
        with timing.part(PART):
            found = compare(expected, got, (copies, inputs))
        if found is not None:
            raise GraphError(
                f"region {name}: the compiled graph differs from the captured one, {found}: the "
                "compiler is wrong; dslearn.regions.workshop finds the operation"
            )
        return got

    return run


def _written(captured: Callable[..., Any]) -> frozenset[int]:
    """The numbers of the inputs that a graph overwrites, views of them included."""
    if not isinstance(captured, fx.GraphModule) or not captured.graph.find_nodes(op="placeholder"):
        return frozenset()
    trace = replay(captured)
    stored = overwritten(trace)
    return frozenset(i for i, node in enumerate(trace.inputs) if node in stored)


def _copies(inputs: Sequence[Any], written: frozenset[int]) -> list[Any]:
    """The inputs in memory of their own, shared among them as before.

    Weights are read where they are, except those that the graph writes.
    """
    # Without what made them: a tensor that autograd remembers cannot be copied.
    own = [one.detach() if isinstance(one, Tensor) else one for one in inputs]
    memo: dict[int, Any] = {}
    for i, one in enumerate(inputs):
        if isinstance(one, nn.Parameter) and i not in written:
            own[i] = memo[id(one)] = one
    return copy.deepcopy(own, memo)
