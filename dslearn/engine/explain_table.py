"""An explanation as tables for a terminal: attention and experts of all layers, then Engram."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from dslearn.engine.explain import Explanation, Key, Layer, Lookup

WIDTH = 110
LISTED = 6  # keys of a kind that are listed; the others are added up
TEXT = 14  # characters of a token's text


def show(explanation: Explanation) -> None:
    """Print the tables; shares are means over the heads."""
    console = Console(width=WIDTH, highlight=False, markup=False, emoji=False)
    at, last = explanation.position, explanation.texts[-1]
    console.print(f"position {at} reads {last}; the next token is {explanation.decoded_text}")
    console.print(_attention(explanation))
    if any(layer.lookups for layer in explanation.layers):
        console.print(_engram(explanation))


def cut(text: str, length: int = TEXT) -> str:
    """`text`, or its start with an ellipsis."""
    return text if len(text) <= length else text[: length - 1] + "…"


def _attention(e: Explanation) -> Table:
    table = _table("Shares of the attention, means over the heads", show_lines=True)
    for name in ("layer", "window", "selected entries", "sink", "experts"):
        table.add_column(name)
    for layer in e.layers:
        table.add_row(
            _role(layer),
            _keys(e, layer.window, len(layer.window)),
            "" if layer.entries_of is None else _keys(e, layer.selected, layer.visible),
            f"{layer.parts[2]:.3f}",
            "\n".join(f"{expert:3d}  {weight:.3f}" for expert, weight in layer.experts),
        )
    return table


def _role(layer: Layer) -> str:
    lines = [f"{layer.index} {layer.role}"]
    if layer.entries_of not in (None, layer.index):
        lines.append(f"entries of {layer.entries_of}")
    if layer.chosen_by not in (None, layer.index):
        lines.append(f"chosen by {layer.chosen_by}")
    return "\n".join(lines)


def _keys(e: Explanation, keys: Sequence[Key], visible: int) -> str:
    """All together, then the heaviest in the order of their positions, then the rest together."""
    heaviest = sorted(keys, key=lambda key: -key.share)[:LISTED]
    lines = [f"{sum(key.share for key in keys):.3f}  {len(keys)} of {visible}"]
    for key in sorted(heaviest, key=lambda key: key.first):
        tokens = " ".join(cut(text) for text in e.texts[key.first : key.last + 1])
        where = f"{key.first}-{key.last}" if key.last > key.first else f"{key.first}"
        lines.append(f"{key.share:.3f}  {where:>5} {tokens}")
    others = len(keys) - len(heaviest)
    if others:
        rest = sum(key.share for key in keys) - sum(key.share for key in heaviest)
        lines.append(f"{rest:.3f}  {others} others")
    return "\n".join(lines)


def _engram(e: Explanation) -> Table:
    table = _table("Engram: table rows of the last tokens, and how far each stream's gate is open")
    for name in ("layer", "gates", "n-gram", "rows, one per hash head"):
        table.add_column(name)
    for layer in e.layers:
        for number, lookup in enumerate(layer.lookups):
            gates = " ".join(f"{gate:.3f}" for gate in layer.gates)
            first = (f"{layer.index}", gates) if number == 0 else ("", "")
            rows = " ".join(str(row) for row in lookup.rows)
            table.add_row(*first, _ngram(e, lookup), rows)
    return table


def _ngram(e: Explanation, lookup: Lookup) -> str:
    """Texts of the n-gram, `pad` for each place before the start."""
    before = ["pad"] * max(0, -lookup.first)
    return " ".join([*before, *(cut(text) for text in e.texts[max(0, lookup.first) :])])


def _table(title: str, *, show_lines: bool = False) -> Table:
    return Table(title=title, title_justify="left", show_lines=show_lines)
