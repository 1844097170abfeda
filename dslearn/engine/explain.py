"""Where one token came from: per layer what it attended to, its experts, its Engram rows.

The numbers are those of the model's own trace, put beside the tokens that they belong to.
Shapes: H heads, W window, K selected entries, S streams, C Engram columns.
Source: docs/reference/model.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dslearn.config import Config
from dslearn.engine.lm import LM, PREFILL_CHUNK
from dslearn.engine.text import REPLACEMENT
from dslearn.errors import UsageError


@dataclass(frozen=True)
class Key:
    """One key: the positions of the tokens that it holds, and its share of every head [H]."""

    first: int
    last: int
    shares: tuple[float, ...]
    entry: int | None = None  # its number among the compressed entries; None in the window

    @property
    def share(self) -> float:
        """Mean over the heads."""
        return sum(self.shares) / len(self.shares)


@dataclass(frozen=True)
class Lookup:
    """An n-gram, the tokens at `first` to the explained one, and its table row per hash head.

    A negative `first` lies before the start, where the pad id stands in.
    """

    first: int
    rows: tuple[int, ...]


@dataclass(frozen=True)
class Layer:
    """What the token does in one layer.

    window, selected and sink share 1 per head. `entries_of` is the layer whose compressed entries
    are read, `chosen_by` the one that selected, both None in a local layer; `visible` entries could
    be chosen. experts are (id, router weight), as ranked; lookups and gates [S] are empty without
    an Engram.
    """

    index: int
    role: str
    entries_of: int | None
    chosen_by: int | None
    visible: int
    window: tuple[Key, ...]
    selected: tuple[Key, ...]
    sink: tuple[float, ...]  # share of every head [H]
    experts: tuple[tuple[int, float], ...]
    lookups: tuple[Lookup, ...]
    gates: tuple[float, ...]

    @property
    def parts(self) -> tuple[float, float, float]:
        """Shares of the window, the selected entries and the sink, means over the heads."""
        window, selected = (sum(key.share for key in keys) for keys in (self.window, self.selected))
        return window, selected, sum(self.sink) / len(self.sink)


@dataclass(frozen=True)
class Explanation:
    """The step of the token at `position`, which gave `decoded`; ids and texts end there."""

    ids: tuple[int, ...]
    texts: tuple[str, ...]  # as Python writes them; of ids
    decoded: int
    decoded_text: str
    layers: tuple[Layer, ...]

    @property
    def position(self) -> int:
        """Of the token that was read last: the query of every layer."""
        return len(self.ids) - 1


def explain(lm: LM, ids: Sequence[int], step: int = 0) -> Explanation:
    """How the model came to new token number `step` of the greedy continuation of `ids`.

    Args:
        lm: a model, with or without a tokenizer.
        ids: the prompt's token ids, as `lm.encode` gives them.
        step: 0 is the first new token.

    Raises:
        UsageError: no ids, or a step below 0, past the end token or past the last position.
    """
    if not ids:
        raise UsageError("nothing to explain: give at least one token id")
    limit = lm.config.max_position_embeddings
    if step < 0 or len(ids) + step > limit:
        raise UsageError(
            f"step {step} after {len(ids)} tokens: a step is 0 or more, and this model knows "
            f"{limit} positions"
        )
    new = list(lm.tokens(list(ids), step)) if step else []
    if len(new) < step:
        raise UsageError(f"step {step}: the text ends after {len(new)} new tokens")
    seen = [*ids, *new]
    logits, layers = _last_step(lm, seen)
    decoded = int(logits[0, -1].argmax())
    return Explanation(
        ids=tuple(seen),
        texts=tuple(_text(lm, i) for i in seen),
        decoded=decoded,
        decoded_text=_text(lm, decoded),
        layers=tuple(_layer(lm.config, i, of, len(seen) - 1) for i, of in enumerate(layers)),
    )


def _last_step(lm: LM, ids: list[int]) -> tuple[Tensor, list[dict[str, Any]]]:
    """Logits of the last of `ids`, and the trace of its layers."""
    state = lm.new_state(1, len(ids))
    for begin in range(0, len(ids) - 1, PREFILL_CHUNK):
        lm.forward([ids[begin : min(begin + PREFILL_CHUNK, len(ids) - 1)]], state)
    trace: dict[str, Any] = {"shares": True}
    return lm.forward([ids[-1:]], state, trace=trace), trace["layers"]


def _layer(cfg: Config, index: int, seen: dict[str, Any], position: int) -> Layer:
    """A layer's trace of one token, with positions instead of slots."""
    shares = seen["shares"][0, 0].T.tolist()  # [W + K + 1, H]
    slots, ratio = cfg.sliding_window, cfg.ratios[index]
    oldest = position - slots + 1
    chosen = [] if seen["topk"] is None else seen["topk"][0, 0].tolist()
    routes = seen["route_ids"][0, 0].tolist(), seen["route_weights"][0, 0].tolist()
    return Layer(
        index=index,
        role=cfg.roles[index],
        entries_of=cfg.kv_source(index),
        chosen_by=cfg.index_source(index),
        visible=(position + 1) // ratio if ratio else 0,
        window=tuple(
            Key(at, at, tuple(shares[at - oldest])) for at in range(max(oldest, 0), position + 1)
        ),
        selected=tuple(
            Key(ratio * entry, ratio * entry + ratio - 1, tuple(shares[slots + slot]), entry)
            for slot, entry in enumerate(chosen)
            if entry >= 0
        ),
        sink=tuple(shares[-1]),
        experts=tuple(zip(*routes, strict=True)),
        lookups=_lookups(cfg, seen["engram_ids"], position),
        gates=() if seen["engram_gates"] is None else tuple(seen["engram_gates"][0, 0].tolist()),
    )


def _lookups(cfg: Config, rows: Tensor | None, position: int) -> tuple[Lookup, ...]:
    """Row ids [1, 1, C], a column per n-gram size and hash head, size by size."""
    if rows is None:
        return ()
    by_size = rows[0, 0].view(-1, cfg.engram_n_heads).tolist()
    return tuple(Lookup(position - back, tuple(row)) for back, row in enumerate(by_size, start=1))


def _text(lm: LM, token: int) -> str:
    """A token as Python writes its text, or its name in the vocabulary if it is no whole text."""
    name = {lm.config.bos_token_id: "<begin>", lm.config.eos_token_id: "<end>"}.get(token)
    if name is None and lm.tokenizer is not None:
        text = lm.tokenizer.decode([token], skip_special_tokens=False)
        name = lm.tokenizer.id_to_token(token) if REPLACEMENT in text else repr(text)
    return name or f"token {token}"
