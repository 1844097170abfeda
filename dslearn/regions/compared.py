"""Compiled graphs beside the captured ones, on the data of the call: what a capture runs.

A compiler may be wrong without a word, and a step's logits need not show it: a store that goes
astray is read much later, or never by the first token. So every graph call of a capture is made
twice, and all that it gives and all that it writes is compared. A graph that differs is never run
again. The second run has all inputs, weights included, in memory of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from dslearn.errors import GraphError
from dslearn.regions import timing
from dslearn.regions.workshop.rerun import Difference, compare

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
        GraphError: in a call: outputs or inputs after it differ. Floats may, by the tolerance of
            their dtype in `workshop.rerun.TOLERANCES`; bytes and integers may not by a bit. Once it
            was raised, in every call.
    """

    wrong: Difference | None = None

    def run(*inputs: Any) -> Any:
        nonlocal wrong
        if wrong is None:
            if not _comparing.get():
                return compiled(*inputs)
            # Both runs draw the same random numbers, and the caller's go on after one of them.
            with timing.part(PART), torch.random.fork_rng(devices=()):
                copies = _copies(inputs)
                expected = captured(*copies)
            got = compiled(*inputs)
            with timing.part(PART):
                wrong = compare(expected, got, (copies, inputs))
            if wrong is None:
                return got
        raise GraphError(
            f"region {name}: the compiled graph differs from the captured one, {wrong}: the "
            "compiler is wrong; dslearn.regions.workshop finds the operation"
        )

    return run


def _copies(inputs: Sequence[Any]) -> list[Any]:
    """The inputs in memory of their own, shared among them as before; weights too.

    A weight may be a cache, and a compiler that is wrong may write to one that is none.
    """
    # Without what made them: a tensor that autograd remembers cannot be copied.
    return copy.deepcopy([x.detach() if isinstance(x, Tensor) else x for x in inputs])
