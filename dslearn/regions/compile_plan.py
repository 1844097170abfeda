"""What a graph runner would compile, from a config alone: nothing is loaded or compiled.

Graphs and bytes follow from shapes: caches are made on the meta device, which has no memory, and
bytes of weights are those of the checkpoint. Shapes: B batch, T tokens, R = B * T rows, S streams.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from dslearn.checkpoint.inventory import inventory
from dslearn.config import Config
from dslearn.model.call import Call
from dslearn.model.chunks import CHUNK
from dslearn.model.plan import Given
from dslearn.model.ring import Span
from dslearn.model.rope import RopeTable
from dslearn.model.state import State
from dslearn.numerics import Numerics
from dslearn.regions.graph_runner import buckets

HOST = ("embed.weight", ".engram.embed.")  # looked up in host memory, by their names


@dataclass(frozen=True)
class Line:
    """Graphs of one shape: `batch` rows of `tokens`.

    `graphs` of `regions` methods are called `calls` times per step, on `rows` bytes of activations
    and plans; `caches` and `weights` are bytes that they read or write where they lie.
    """

    batch: int
    tokens: int
    regions: int
    graphs: int
    calls: int
    rows: int
    caches: int
    weights: int


class CompilePlan(tuple[Line, ...]):
    """Lines in the order in which they are compiled; `str()` is a table."""

    __slots__ = ()

    @property
    def graphs(self) -> int:
        """All graphs."""
        return sum(line.graphs for line in self)

    def __str__(self) -> str:
        head = ("batch", "tokens", "regions", "graphs", "calls", "inputs MB", "caches MB")
        table = [f"{'':2}".join(f"{name:>9}" for name in (*head, "weights MB"))]
        for line in self:
            counts = line.batch, line.tokens, line.regions, line.graphs, line.calls
            sizes = line.rows, line.caches, line.weights
            cells = [f"{n:>9}" for n in counts] + [f"{n / 1e6:>9,.2f}" for n in sizes]
            table.append(f"{'':2}".join(cells))
        return "\n".join([*table, f"{self.graphs} graphs in all"])


def compile_plan(
    cfg: Config, max_num_seqs: int, max_len: int, mode: str = "regions"
) -> CompilePlan:
    """What `GraphRunner(model, max_num_seqs, max_len, mode).capture()` compiles.

    Raises:
        UsageError: no sequences.
        StateError: a `max_len` that the model has no positions for.
    """
    shapes = [(1, CHUNK)] + [(size, 1) for size in reversed(buckets(max_num_seqs))]
    with torch.device("meta"):
        state = State(cfg, Numerics(), max_num_seqs + 1, max_len)
    weights = _weights(cfg)
    return CompilePlan(_line(cfg, state, *shape, mode, weights) for shape in shapes)


def attention_roles(cfg: Config) -> list[tuple[Any, ...]]:
    """What tells the attention of one layer from that of another, in a graph; one per layer."""
    return [
        (
            cfg.ratios[layer],
            layer in cfg.kv_source_layer_ids,
            layer in cfg.index_source_layer_ids,
            layer == cfg.candidate_source_layer_id,
            cfg.uses_candidates(layer),
        )
        for layer in range(cfg.num_hidden_layers)
    ]


def _line(  # noqa: PLR0913, PLR0917 - a shape, and what it is compiled for
    cfg: Config, state: State, batch: int, tokens: int, mode: str, weights: int
) -> Line:
    rows, layers, engrams = batch * tokens, cfg.num_hidden_layers, len(cfg.engram_layer_ids)
    given = _given(cfg, state, batch, tokens)
    streams = rows * cfg.hc_mult * (cfg.hidden_size + 1) * 4  # h [R, S, d] and pre [R, S]
    caches = _bytes(one.pools for one in given)
    kinds = 3 + bool(engrams)
    if mode == "whole":
        return Line(batch, tokens, 1, 1, 1, streams + _bytes(given) - caches, caches, weights)
    calls = 2 * layers + engrams + 1
    # Each half reads the streams, Engram's without pre; a plan goes into every attention.
    read = calls * streams - engrams * rows * cfg.hc_mult * 4 + _handed_on(cfg, given, rows)
    read += sum(_bytes([one]) - _bytes([one.pools]) for one in given)
    graphs = len(set(attention_roles(cfg))) + kinds - 1
    return Line(batch, tokens, kinds, graphs, calls, read, caches, weights)


def _handed_on(cfg: Config, given: Sequence[Given], rows: int) -> int:
    """Bytes of selections that layers take from the one before that made them."""
    chosen = candidates = taken = 0
    for layer, one in enumerate(given):
        if layer in cfg.index_source_layer_ids:
            chosen = min(cfg.index_topk, one.plan.entries) * 8  # int64 [B, T, K]
        elif cfg.ratios[layer]:
            taken += chosen
        if cfg.uses_candidates(layer):
            taken += candidates
        if layer == cfg.candidate_source_layer_id:
            candidates = one.plan.entries  # bool [B, T, N]
    return rows * taken


def _given(cfg: Config, state: State, batch: int, tokens: int) -> list[Given]:
    """What a call hands to each layer: real plans, caches without memory."""
    rope = cfg.qk_rope_head_dim
    tables = {
        "local": RopeTable(rope, cfg.rope_theta, None),
        "compress": RopeTable(rope, cfg.compress_rope_theta, cfg.rope_scaling),
    }
    start, lanes = torch.zeros(batch, dtype=torch.int64), torch.arange(batch)
    span = Span(start, start + tokens, tokens, cfg.sliding_window, lanes)
    call = Call(tables, span, state, fixed=True)
    width = cfg.engram_columns * cfg.engram_head_dim
    return [
        Given(
            call.plan(ratio),
            call.pools(layer),
            torch.empty(batch * tokens, width, device="meta")
            if layer in cfg.engram_layer_ids
            else None,
        )
        for layer, ratio in enumerate(cfg.ratios)
    ]


def _bytes(things: Iterable[Any]) -> int:
    """Of the tensors in `things`, each counted once."""
    found = {id(x): x.nbytes for x in tree_leaves(list(things)) if isinstance(x, Tensor)}
    return sum(found.values())


def _weights(cfg: Config, host: Sequence[str] = HOST) -> int:
    stored = inventory(cfg, ("target",))
    return sum(
        spec.nbytes
        for name, spec in stored.items()
        if not any(name.startswith(part) or part in name for part in host)
    )
