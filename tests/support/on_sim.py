"""Running something on the simulator, and what it called there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dslearn import backend, ops


def on_sim(function: Callable[..., Any], *arguments: Any) -> tuple[Any, dict[str, int]]:
    """The result on sim, and kernel: calls."""
    with backend.use("sim"), ops.collect() as taken:
        result = function(*arguments)
    return result, {op: paths["kernel"] for op, paths in taken.counts().items()}
