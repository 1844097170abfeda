"""An explanation as one picture: a row per layer, positions to the right.

matplotlib comes with the notebooks extra; the library runs without it, so it is imported by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from dslearn.engine.explain import Explanation, Layer
from dslearn.engine.explain_table import cut
from dslearn.errors import UsageError

WINDOW, SELECTED, SINK = "tab:blue", "tab:orange", "tab:gray"
TITLES = (
    "attention: window keys up, selected entries down",
    "all, and the sink",
    "experts",
    "gates",
)
LABELLED = 80  # tokens; below a longer text stand positions


def figures() -> Any:
    """The module `matplotlib.figure`.

    Raises:
        UsageError: matplotlib is not installed.
    """
    try:
        return import_module("matplotlib.figure")
    except ModuleNotFoundError:
        raise UsageError("a picture needs matplotlib: pip install 'dslearn[notebooks]'") from None


def check(path: str) -> None:
    """Raise UsageError if `path` is no picture that can be drawn, before any work is done."""
    if Path(path).suffix not in (".png", ".svg"):
        raise UsageError(f"--out {path}: a picture ends in .png or .svg")
    figures()


def save(explanation: Explanation, path: str) -> None:
    """Write the picture of all layers to `path`, PNG or SVG by its ending.

    Raises:
        UsageError: see `check`; or the file cannot be written.
    """
    check(path)
    try:
        draw(explanation).savefig(path)
    except OSError as error:
        raise UsageError(f"--out {path}: {error.strerror}") from error


def draw(explanation: Explanation, layers: Iterable[int] | None = None) -> Any:
    """A matplotlib figure of these layers, default all: attention, its parts, experts, gates.

    Blue bars upwards are window keys, orange ones downwards selected entries, as wide as the tokens
    that they hold, with a mark at the bottom for each; positions outside the window are grey.
    """
    shown = explanation.layers if layers is None else [explanation.layers[i] for i in layers]
    size = (12, 1.2 * len(shown) + 1.2)
    figure = figures().Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(shown), 4, squeeze=False, width_ratios=(12, 2, 2, 1))
    for row, layer in zip(axes, shown, strict=True):
        draw_attention(row[0], layer, explanation.position)
        _parts(row[1], layer)
        _bars(row[2], dict(layer.experts))
        _bars(row[3], dict(enumerate(layer.gates)))
    for axis, title in zip(axes[0], TITLES, strict=True):
        axis.set_title(title, fontsize=9)
    _name_tokens(axes[-1][0], explanation)
    last, new = _plain(explanation.texts[-1]), _plain(explanation.decoded_text)
    figure.suptitle(f"position {explanation.position} reads {last}; next is {new}", fontsize=10)
    return figure


def draw_attention(axes: Any, layer: Layer, position: int) -> None:
    """Shares of window keys (upwards) and of selected entries (downwards) over the positions."""
    near, far = layer.window, layer.selected
    axes.bar([key.first for key in near], [key.share for key in near], width=0.9, color=WINDOW)
    middles = [(key.first + key.last) / 2 for key in far]
    widths = [key.last - key.first + 0.9 for key in far]
    axes.bar(middles, [-key.share for key in far], width=widths, color=SELECTED)
    top = max(key.share for key in (*near, *far)) or 1.0
    axes.bar(middles, 0.12 * top, bottom=-1.1 * top, width=widths, color=SELECTED, alpha=0.5)
    axes.axvspan(-0.5, near[0].first - 0.5, color="0.93", zorder=0)
    axes.axhline(0, color="black", linewidth=0.5)
    axes.set(xlim=(-0.5, position + 0.5), ylim=(-1.1 * top, 1.1 * top), xticks=[], yticks=[])
    role = layer.role.replace("+", "\n+")
    axes.set_ylabel(f"{layer.index} {role}", rotation=0, ha="right", va="center", fontsize=8)
    axes.text(0.005, 0.95, f"{top:.2f}", transform=axes.transAxes, va="top", fontsize=7)


def _parts(axes: Any, layer: Layer) -> None:
    """Window, selected and sink, side by side, 1 together."""
    start = 0.0
    for share, colour in zip(layer.parts, (WINDOW, SELECTED, SINK), strict=True):
        axes.barh([0], [share], left=start, color=colour)
        start += share
    axes.set(xlim=(0, 1), ylim=(-1, 1), xticks=[], yticks=[])


def _bars(axes: Any, values: dict[int, float]) -> None:
    """A bar per number, with its name below; nothing without numbers."""
    if not values:
        axes.axis("off")
        return
    names = sorted(values)
    axes.bar(range(len(names)), [values[name] for name in names], color="tab:green")
    axes.set(xlim=(-0.6, len(names) - 0.4), ylim=(0, max(1.0, *values.values())), yticks=[])
    axes.set_xticks(range(len(names)), [str(name) for name in names], fontsize=7)


def _name_tokens(axes: Any, explanation: Explanation) -> None:
    """Tokens below the last row, or positions if there are many."""
    count = len(explanation.ids)
    if count <= LABELLED:
        names = [_plain(text) for text in explanation.texts]
        axes.set_xticks(range(count), names, rotation=90, fontsize=7)
    else:
        axes.set_xticks(range(0, count, 10 ** (len(str(count)) - 1) // 4))
        axes.tick_params(labelsize=7)
        axes.set_xlabel("position", fontsize=8)


def _plain(text: str) -> str:
    """A token's text in characters that every font has; a dollar does not begin a formula."""
    return cut(text.encode("ascii", "backslashreplace").decode()).replace("$", r"\$")
