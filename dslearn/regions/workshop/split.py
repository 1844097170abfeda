"""The fewest pieces of a graph that each compile.

The operations stay in their order; a piece is a run of them. The first piece is made as long as
compiles, then the next one begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from torch import fx

from dslearn.errors import UsageError
from dslearn.regions.workshop.attempt import Attempt, Backend
from dslearn.regions.workshop.case import Case
from dslearn.regions.workshop.pieces import Known, cut, record
from dslearn.regions.workshop.reduce import OnStep
from dslearn.regions.workshop.rerun import Spec
from dslearn.regions.workshop.trier import Trier


@dataclass(frozen=True)
class Split:
    """A graph in pieces.

    Attributes:
        whole: what was split.
        pieces: in the order of execution.
        compiles: how many it took to find them.
    """

    whole: Case
    pieces: tuple[Case, ...]
    compiles: int

    def chain(self, backend: Backend) -> _Chain:
        """Compile every piece; -> a callable that takes and returns what the whole graph does."""
        compiled = [backend(piece.module, piece.inputs()) for piece in self.pieces]
        return _Chain(self, compiled)


class _Chain:
    """Pieces that hand their values on by the names of the graph's nodes."""

    def __init__(self, split: Split, compiled: Sequence[Any]) -> None:
        self.graph = split.whole.module.graph
        self.constants = {
            node.name: attrgetter(str(node.target))(split.whole.module)
            for node in self.graph.find_nodes(op="get_attr")
        }
        self.steps = [
            (piece.module.graph, function)
            for piece, function in zip(split.pieces, compiled, strict=True)
        ]

    def __call__(self, *inputs: Any) -> Any:
        """Run the pieces one after the other."""
        names = [node.name for node in self.graph.find_nodes(op="placeholder")]
        values = dict(zip(names, inputs, strict=True)) | self.constants
        for graph, function in self.steps:
            given = [values[node.name] for node in graph.find_nodes(op="placeholder")]
            found = function(*given)
            names = [node.name for node in _outputs(graph)]
            values.update(zip(names, found, strict=True))
        return fx.node.map_arg(self.graph.output_node().args[0], lambda node: values[node.name])


def _outputs(graph: fx.Graph) -> Sequence[fx.Node]:
    """What a piece returns: `cut` makes that a flat tuple of nodes."""
    return graph.output_node().args[0]  # type: ignore[return-value]


def split(
    case: Case,
    attempt: Attempt,
    *,
    rate: float = 1.0,
    confidence: float = 0.95,
    on_step: OnStep | None = None,
) -> Split:
    """Cut a graph into pieces that each compile, and give eager's result.

    Every piece was compiled, as often as `rate` asks for. If every part of a run that compiles
    compiles too, no cut into fewer pieces exists, and finding one of k operations among n takes
    about 2 log2(k) graphs. If not (a compiler may need context), there may be fewer pieces.

    Args:
        case: the graph.
        attempt: one compile of a graph.
        rate: failures rarer than this may be missed.
        confidence: that a failure of that rate is not missed, per graph.
        on_step: called after every graph with (compiles so far, operations left).

    Raises:
        UsageError: an operation does not even compile alone, or no such rate.
    """
    known, trier = record(case), Trier(attempt, rate, confidence)
    groups = _groups(case.operations, known)
    begin, pieces = 0, list[Case]()

    def tried(end: int) -> Case | None:
        piece = _run(case, known, [node for group in groups[begin:end] for node in group])
        failed = trier.failure(piece)
        if on_step is not None:
            on_step(trier.compiles, sum(map(len, groups[begin:])))
        if failed and end == begin + 1:
            names = ", ".join(node.name for node in groups[begin])
            raise UsageError(f"{names} fails even alone: {failed.kind}: {failed.text}")
        return None if failed else piece

    while begin < len(groups):
        piece, begin = _longest(tried, begin, len(groups))
        pieces.append(piece)
    return Split(case, tuple(pieces), trier.compiles)


def _longest(tried: Callable[[int], Case | None], begin: int, end: int) -> tuple[Case, int]:
    """The longest run from `begin` that compiles, and where it ends."""
    piece, good, bad, width = tried(end), begin, end, 1
    if piece is not None:  # nothing to cut
        return piece, end
    while begin + width < bad:  # twice as long, while it compiles
        longer = tried(begin + width)
        if longer is None:
            bad = begin + width
        else:
            piece, good, width = longer, begin + width, 2 * width
    while bad - good > 1:  # then between what does and what does not
        middle = (good + bad) // 2
        longer = tried(middle)
        if longer is None:
            bad = middle
        else:
            piece, good = longer, middle
    assert piece is not None, "a single group that fails was refused"
    return piece, good


def _groups(operations: list[fx.Node], known: Known) -> list[list[fx.Node]]:
    """Runs that cannot be cut: only tensors may cross from one to the next."""
    place = {node: i for i, node in enumerate(operations)}
    groups: list[list[fx.Node]] = [[]]
    reach = 0  # the last reader of anything but a tensor
    for i, node in enumerate(operations):
        if i > reach and groups[-1]:
            groups.append([])
        groups[-1].append(node)
        if not isinstance(known[node], Spec):
            reach = max([reach, *(place[user] for user in node.users if user in place)])
    return groups


def _run(case: Case, known: Known, nodes: list[fx.Node]) -> Case:
    """The piece of these nodes; it returns what others read."""
    inside = set(nodes)
    return cut(case, known, inside, {n for n in nodes if any(u not in inside for u in n.users)})
