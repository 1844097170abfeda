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
from typing import Any

from torch import nn

from dslearn.errors import GraphError
from dslearn.regions.workshop.rerun import compare

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

    def run(*inputs: Any) -> Any:
        if not _comparing.get():
            return compiled(*inputs)
        copies = _copies(inputs)
        expected = captured(*copies)
        got = compiled(*inputs)
        found = compare(expected, got, (copies, inputs))
        if found is not None:
            raise GraphError(
                f"region {name}: the compiled graph differs from the captured one, {found}: the "
                "compiler is wrong; dslearn.regions.workshop finds the operation"
            )
        return got

    return run


def _copies(inputs: Sequence[Any]) -> list[Any]:
    """The inputs in memory of their own, shared among them as before; weights are only read."""
    memo: dict[int, Any] = {id(one): one for one in inputs if isinstance(one, nn.Parameter)}
    return copy.deepcopy(list(inputs), memo)
