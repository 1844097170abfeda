"""Which way each operation went: its twin or its kernel, counted.

A compiled graph counts when it runs, except on `neuron`, where kernels are part of the graph and
count once, when it is traced. A twin that gradients pass through counts in eager mode only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

Path = Literal["twin", "kernel"]


class Ledger:
    """Calls by operation and path. `str()` is one line: `rmsnorm: kernel 12; swiglu: twin 3`."""

    def __init__(self) -> None:
        self._calls: Counter[tuple[str, Path]] = Counter()

    def note(self, op: str, path: Path) -> None:
        """Count one call."""
        self._calls[op, path] += 1

    def counts(self) -> dict[str, dict[str, int]]:
        """Operation -> path -> calls, sorted by operation; paths not taken are left out."""
        found: dict[str, dict[str, int]] = {}
        for (op, path), calls in sorted(self._calls.items()):
            found.setdefault(op, {})[path] = calls
        return found

    def __str__(self) -> str:
        each = (
            f"{op}: {', '.join(f'{path} {calls}' for path, calls in taken.items())}"
            for op, taken in self.counts().items()
        )
        return "; ".join(each) or "no operation was called"


_process = Ledger()
_open: ContextVar[tuple[Ledger, ...]] = ContextVar("dslearn_ledgers", default=(_process,))


def note(op: str, path: Path) -> None:
    """Count one call in the process's ledger and in those of the `collect` blocks around it."""
    for ledger in _open.get():
        ledger.note(op, path)


def paths() -> dict[str, dict[str, int]]:
    """Operation -> path ("twin" or "kernel") -> calls since this process began."""
    return _process.counts()


@contextmanager
def collect() -> Iterator[Ledger]:
    """A ledger of the calls inside the `with` block, made by its own thread (or asyncio task)."""
    ledger = Ledger()
    token = _open.set((*_open.get(), ledger))
    try:
        yield ledger
    finally:
        _open.reset(token)
