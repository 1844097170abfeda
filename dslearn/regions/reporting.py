"""Which regions have which graphs."""

from __future__ import annotations

from dataclasses import dataclass

from dslearn.regions.compiled import Region


@dataclass(frozen=True)
class Line:
    """One region: calls so far, graphs, operations and input bytes of its largest graph.

    `whys` says for each graph why it was made, `warnings` what the lint has against them.
    """

    stage: str
    region: str
    calls: int
    graphs: int
    operations: int
    input_bytes: int
    whys: tuple[str, ...]
    warnings: tuple[str, ...]


class Report(tuple[Line, ...]):
    """Lines by region; `str()` is a table, with the reasons below it."""

    __slots__ = ()

    @property
    def graphs(self) -> int:
        """All graphs."""
        return sum(line.graphs for line in self)

    def __str__(self) -> str:
        head = f"{'region':32} {'stage':12} {'calls':>8} {'graphs':>6} {'ops':>6} {'input MB':>9}"
        rows = [
            f"{line.region:32} {line.stage:12} {line.calls:8} {line.graphs:6} {line.operations:6} "
            f"{line.input_bytes / 1e6:9.3f}"
            for line in self
        ]
        whys = [
            f"{line.region}, graph {i}: {why}" for line in self for i, why in enumerate(line.whys)
        ]
        return "\n".join([head, *rows, *whys])


def line_of(region: Region) -> Line:
    """What there is of one region."""
    graphs = [entry.graph for entry in region.entries]
    warnings = [str(one) for graph in graphs for one in graph.written.warnings]
    return Line(
        stage=region.stage,
        region=region.name,
        calls=region.calls,
        graphs=len(graphs),
        operations=max((graph.written.operations for graph in graphs), default=0),
        input_bytes=max((graph.input_bytes for graph in graphs), default=0),
        whys=tuple(entry.why for entry in region.entries),
        warnings=tuple(dict.fromkeys(warnings)),
    )
