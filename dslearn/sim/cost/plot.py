"""A picture of a schedule: one row per engine, time to the right."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from dslearn.errors import UsageError
from dslearn.sim.cost.summary import Profile
from dslearn.sim.cost.trace import lanes

ROWS = ("tensor", "vector", "scalar", "gpsimd", "dma load", "dma store")


def bars(profile: Profile, core: int = 0) -> dict[str, list[tuple[float, float]]]:
    """Queue -> (start, width) in us of what core `core` does there; overlapping DMAs are joined."""
    spans: dict[str, list[tuple[float, float]]] = {name: [] for name in ROWS}
    for (owner, lane), pieces in lanes(profile.steps).items():
        if owner == core:
            queue = lane.rstrip("0123456789 ")
            spans.setdefault(queue, []).extend((a / 1e3, b / 1e3) for a, b, _ in pieces)
    return {queue: _joined(pieces) for queue, pieces in spans.items()}


def _joined(pieces: list[tuple[float, float]]) -> list[tuple[float, float]]:
    joined: list[tuple[float, float]] = []
    for start, stop in sorted(pieces):
        if joined and start <= joined[-1][1]:
            first, last = joined[-1]
            joined[-1] = first, max(last, stop)
        else:
            joined.append((start, stop))
    return [(start, stop - start) for start, stop in joined]


def draw(profile: Profile, axes: Any, core: int = 0) -> None:
    """Draw core `core` on matplotlib axes."""
    rows = bars(profile, core)
    for number, pieces in enumerate(rows.values()):
        axes.broken_barh(pieces, (number - 0.4, 0.8))
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_ylim(len(rows) - 0.5, -0.5)  # the first row on top
    axes.set_xlim(0, profile.us)
    axes.set_xlabel("modelled time, µs")
    axes.set_title(f"{profile.kernel}, core {core}: modelled {profile.us:.1f} µs")


def figures() -> Any:
    """The module `matplotlib.figure`.

    Raises:
        UsageError: matplotlib is not installed.
    """
    try:
        return import_module("matplotlib.figure")
    except ModuleNotFoundError:
        raise UsageError("--plot needs matplotlib: pip install 'dslearn[notebooks]'") from None


def check(path: str) -> None:
    """Raise UsageError if no picture can be drawn or `path` lies in no folder, before any work."""
    figures()
    folder = Path(path).parent
    if not folder.is_dir():
        raise UsageError(f"--plot {path}: {folder} is no folder; make it, or name another file")


def save(profile: Profile, path: str) -> None:
    """Write the picture to `path`; its ending chooses the format.

    Raises:
        UsageError: matplotlib is not installed or does not know the ending, or `path` cannot be
            written.
    """
    figure = figures().Figure(figsize=(10, 2.5 * profile.cores), layout="constrained")
    all_axes = figure.subplots(profile.cores, 1, squeeze=False)
    for core in range(profile.cores):
        draw(profile, all_axes[core][0], core)
    try:
        figure.savefig(path)
    except OSError as error:
        raise UsageError(f"--plot {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise UsageError(f"--plot {path}: {error}") from None
