"""From a graph that a compiler fails on to the few operations that it takes.

Delta debugging (A. Zeller and R. Hildebrandt, IEEE Transactions on Software Engineering 28, 2002)
on the nodes: chunks are removed as long as the same failure remains, halving down to single ones.
What a kept node read from a removed one becomes an input of the smaller graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import fx

from dslearn.errors import UsageError
from dslearn.findings import count
from dslearn.regions.lint.trace import writes
from dslearn.regions.workshop.attempt import Attempt, Outcome
from dslearn.regions.workshop.case import Case
from dslearn.regions.workshop.pieces import Known, cut, record
from dslearn.regions.workshop.trier import Trier

OnStep = Callable[[int, int], None]  # compiles so far, operations left


class _Item(NamedTuple):
    """What can be removed: an operation, or the fact that its value is also returned."""

    node: fx.Node
    returned: bool


@dataclass(frozen=True)
class Reduction:
    """A minimal failing graph.

    Attributes:
        case: the graph and its inputs.
        outcome: a failure of it.
        compiles: how many it took.
        operations: how many there were at the beginning.
    """

    case: Case
    outcome: Outcome
    compiles: int
    operations: int

    @property
    def title(self) -> str:
        """What a reproducer says at its top."""
        left = len(self.case.operations)
        size = f"{left} of {self.operations} operations, found in {self.compiles} compiles"
        return f"{self.outcome.kind}: {self.outcome.text}\n\n{size}.".replace(": \n", "\n")


def reduce(
    case: Case,
    attempt: Attempt,
    *,
    rate: float = 1.0,
    confidence: float = 0.95,
    on_step: OnStep | None = None,
) -> Reduction:
    """Reduce a failing graph until removing any one more operation removes the failure.

    Failures of another signature (another compiler code, a wrong result instead of a crash) do not
    count. With a flaky compiler the result did fail, for certain; that no operation could be left
    out holds with probability `confidence` for each one, if the failure's rate is `rate` or more.

    Args:
        case: the graph.
        attempt: one compile of a graph.
        rate: rarer failures may be missed; below 1 graphs that pass are compiled repeatedly.
        confidence: that a failure of that rate is not missed, per graph.
        on_step: called after every graph with (compiles so far, operations left).

    Raises:
        UsageError: the graph does not fail, eager fails on inputs drawn for it, or no such rate.
    """
    known, trier = record(case), Trier(attempt, rate, confidence)
    items = [_Item(node, False) for node in case.operations]
    items += [_Item(node, True) for node in _returned(case.module.graph)]
    whole = _piece(case, known, items)
    failure = trier.failure(whole)
    if failure is None:
        raise UsageError(
            f"no failure to reduce: {count(trier.compiles, 'compile')} passed; state a lower rate "
            f"than {rate:g} if it is rare"
        )
    seen: dict[frozenset[_Item], tuple[Case, Outcome] | None] = {}
    seen[frozenset(items)] = whole, failure

    def fails(left: list[_Item]) -> bool:
        key = frozenset(left)
        if key not in seen:
            piece = _piece(case, known, left)
            found = trier.failure(piece, like=failure) if piece.operations else None
            seen[key] = (piece, found) if found else None
        if on_step is not None:
            on_step(trier.compiles, sum(not item.returned for item in left))
        return seen[key] is not None

    size = len(items) // 2 or 1
    while True:
        before, start = len(items), 0
        while start < len(items):
            left = items[:start] + items[start + size :]
            if fails(left):
                items = left
            else:
                start += size
        if size == 1 and len(items) == before:
            break
        size = size // 2 or 1
    found = seen[frozenset(items)]
    assert found is not None, "what is left was seen to fail"
    return Reduction(*found, trier.compiles, len(case.operations))


def _returned(graph: fx.Graph) -> list[fx.Node]:
    """Operations whose values are returned."""
    return [node for node in graph.output_node().all_input_nodes if node.op.startswith("call_")]


def _piece(case: Case, known: Known, items: list[_Item]) -> Case:
    """The graph of these operations; values that no other one reads are returned."""
    kept = {item.node for item in items if not item.returned}
    ends = {n for n in kept if not writes(n) and not any(user in kept for user in n.users)}
    return cut(case, known, kept, ends | {item.node for item in items if item.returned})
