"""Figures of notebook 03: groups of a compressor, and scores with what they select."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor


def groups(ax: Any, calls: Sequence[int]) -> list[list[int]]:
    """Draw tokens that arrive in calls of these lengths, a row per call, and the pairs they close.

    A token is a dot at its position; a bar joins the two of a pair in the row that closes it; a
    ring is a token that waits after the call.

    Returns:
        The entries that each call closes.
    """
    closed, start = [], 0
    for row, length in enumerate(calls):
        stop = start + length
        ax.plot(range(start, stop), [row] * length, "o", color="tab:blue", zorder=3)
        pairs = list(range(start // 2, stop // 2))
        for pair in pairs:
            ax.plot(
                [2 * pair, 2 * pair + 1], [row, row], linewidth=9, alpha=0.4, color="tab:orange"
            )
            ax.text(2 * pair + 0.5, row - 0.2, f"entry {pair}", ha="center", fontsize=8)
        if stop % 2:
            ax.plot([stop - 1], [row], "o", markersize=14, fillstyle="none", color="tab:gray")
        closed.append(pairs)
        start = stop
    names = [f"call {number}" for number in range(1, len(calls) + 1)]
    ax.set_yticks(range(len(calls)), names)
    ax.set(xlabel="position", ylim=(len(calls) - 0.5, -0.7), xticks=range(start))
    return closed


def selection(ax: Any, scores: Tensor, chosen: Iterable[int], spans: Iterable[range] = ()) -> None:
    """Draw the score of every entry as a line, the chosen ones as dots, candidate spans shaded.

    Args:
        ax: matplotlib axes.
        scores: [N].
        chosen: entries.
        spans: entries of each candidate block.
    """
    for span in spans:
        ax.axvspan(span.start - 0.5, span.stop - 0.5, color="0.88", zorder=0)
    chosen = list(chosen)
    ax.plot(range(len(scores)), scores, linewidth=0.8, color="tab:blue")
    ax.plot(chosen, scores[chosen], "o", markersize=4, color="tab:orange")
    ax.set(xlim=(-1, len(scores)), ylabel="score")
