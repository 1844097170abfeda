"""Where the host spends a step: time and launches per stage, and what lies outside of all stages.

    with timing.record() as ledger:
        for token in tokens:
            with timing.step():
                lm.forward([[token]], state)
    print(ledger)

On a device a call returns before its work is done, so this is the time to hand work over, plus
waits. A stage that calls another is charged for its own time only: the rows add up to the step.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from time import perf_counter

from dslearn import ops

OUTSIDE = "outside of stages"


@dataclass
class Row:
    """What the calls of one stage took: seconds of the host, launches of kernels and of twins."""

    calls: int = 0
    seconds: float = 0.0
    kernels: int = 0
    twins: int = 0


class Ledger:
    """Rows by stage (`OUTSIDE` for the rest of the steps); `str()` is a table per step."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.steps = 0
        self._inside = Row()  # what was charged to others since the innermost stage began

    @contextmanager
    def charge(self, name: str) -> Iterator[None]:
        """Charge the `with` block to `name`, less what blocks inside of it are charged with."""
        outer, self._inside = self._inside, Row()
        start = perf_counter()
        try:
            with ops.collect() as taken:
                yield
        finally:
            spent, counts = perf_counter() - start, taken.counts().values()
            kernels = sum(paths.get("kernel", 0) for paths in counts)
            twins = sum(paths.get("twin", 0) for paths in counts)
            row, inside = self.rows.setdefault(name, Row()), self._inside
            row.calls += 1
            row.seconds += spent - inside.seconds
            row.kernels += kernels - inside.kernels
            row.twins += twins - inside.twins
            outer.seconds += spent
            outer.kernels += kernels
            outer.twins += twins
            self._inside = outer

    def __str__(self) -> str:
        total, steps = sum(row.seconds for row in self.rows.values()), max(self.steps, 1)
        head = ("per step" if self.steps else "in all", "calls", "ms", "share", "kernels", "twins")
        table: list[tuple[str, ...]] = [head]
        for name, row in sorted(self.rows.items(), key=lambda item: item[0] == OUTSIDE):
            calls = row.calls if name != OUTSIDE else self.steps
            shown = (calls, row.kernels, row.twins)
            each = [f"{number / steps:g}" for number in shown]
            share = f"{row.seconds / total:.1%}" if total else "-"
            table.append((name, each[0], f"{row.seconds / steps * 1e3:.3f}", share, *each[1:]))
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if i == 0 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
            for line in table
        )


_process: Ledger | None = None
_open: ContextVar[Ledger | None] = ContextVar("dslearn_host_timing", default=None)


def active() -> Ledger | None:
    """The ledger that stages are charged to now, if any."""
    return _open.get() or _process


@contextmanager
def record() -> Iterator[Ledger]:
    """A ledger of the stages in the `with` block, for its own thread (or asyncio task)."""
    ledger = Ledger()
    token = _open.set(ledger)
    try:
        yield ledger
    finally:
        _open.reset(token)


@contextmanager
def step() -> Iterator[None]:
    """The `with` block is one step: what no stage in it is charged with is `OUTSIDE`."""
    ledger = active()
    if ledger is None:
        yield
        return
    with ledger.charge(OUTSIDE):
        yield
    ledger.steps += 1


@contextmanager
def part(name: str) -> Iterator[None]:
    """Charge the `with` block to `name`, if anybody measures."""
    ledger = active()
    if ledger is None:
        yield
        return
    with ledger.charge(name):
        yield


def print_at_exit() -> None:
    """Time the whole process, and print the table to stderr when it ends."""
    global _process
    if _process is None:
        _process = ledger = Ledger()
        atexit.register(lambda: print(ledger, file=sys.stderr))
