"""When a call is a step, and the step itself: `Model.forward` and `Block.forward` for one token.

Shapes: S streams, d hidden, V vocabulary, C Engram columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dslearn import backend
from dslearn.model.arith import Arith
from dslearn.model.block import Block
from dslearn.model.ring import Span
from dslearn.model.stage import compiles
from dslearn.model.state import State
from dslearn.model.step.attention import attention
from dslearn.model.step.context import Step
from dslearn.model.step.engram import engram, table_rows
from dslearn.model.step.experts import experts
from dslearn.model.step.parts import Row, matrix, norm, weighted
from dslearn.model.step.streams import coefficients, collapse, expand

if TYPE_CHECKING:
    from dslearn.model.model import Model


def possible(model: Model, ids: Tensor, lengths: Tensor) -> bool:
    """Whether ids [B, T] is one real token and torch is not needed for anything else than numbers.

    Another `Arith` means that someone put other products in, another backend that kernels serve.
    """
    numerics, weight = model.numerics, model.embed.weight
    return (
        ids.shape == (1, 1)
        and type(ids) is Tensor
        and not compiles()
        and not torch.compiler.is_compiling()
        and type(model.arith) is Arith
        and backend.current().name == "cpu"
        and numerics.arithmetic == "fp32"
        and not numerics.row_invariant
        and weight.dtype is torch.float32
        and weight.device.type == "cpu"
        and int(lengths[0]) == 1
        and not torch.is_autocast_enabled("cpu")
        and not (torch.is_grad_enabled() and any(p.requires_grad for p in model.parameters()))
    )


def decode(
    model: Model, ids: Tensor, state: State, lengths: Tensor, trace: dict[str, Any] | None
) -> Tensor:
    """Logits [1, 1, V] of the token ids [1, 1], which joins `state`: `Model.forward`."""
    position = int(state.positions[0])
    span = Span(state.positions.clone(), lengths, 1, model.cfg.sliding_window)
    local, compress = (model.tables[name].turn(position) for name in ("local", "compress"))
    step = Step(position, state, span, local, compress)
    if trace is not None:
        step.trace = trace["layers"] = []
    with np.errstate(all="ignore"):  # NaN and infinity pass through as in torch
        logits = _logits(model, int(ids), step)
    state.advance(lengths)
    return torch.from_numpy(logits)[None, None]


def _logits(model: Model, token: int, step: Step) -> Row:
    """Token id -> scores [V]: embed, blocks, collapse, head."""
    rows = None
    if model.engram_hash is not None:
        rows = table_rows(model.engram_hash, token, step.position, step.state)
    h = np.tile(matrix(model.embed.weight)[token], (model.cfg.hc_mult, 1))
    pre = np.zeros(len(h), np.float32)
    pre[0] = 1
    for layer in model.layers:
        h, pre = block(cast(Block, layer), h, pre, step, rows)
    return weighted(model.head.weight, norm(model.norm, collapse(h, pre)))


def block(
    layer: Block, h: Row, pre: Row, step: Step, rows: NDArray[np.int64] | None
) -> tuple[Row, Row]:
    """h [S, d], pre [S] of the sublayer before -> both for the next; rows [L, C] table rows."""
    ids = gates = None
    if layer.engram is not None:
        assert rows is not None, "an Engram layer comes with hashed rows"
        ids = rows[layer.engram.index]
        h, gates = engram(layer.engram, h, ids)
    seen = {"engram_ids": ids, "engram_gates": gates, "streams": h, "pre": pre}
    next_pre, post, comb = coefficients(layer.hc_attn, h)
    y = attention(layer.attn, norm(layer.attn_norm, collapse(h, pre)), step)
    h = expand(y, h, post, comb)
    last_pre, post, comb = coefficients(layer.hc_ffn, h)
    y, routes, weights = experts(layer.ffn, norm(layer.ffn_norm, collapse(h, next_pre)))
    if step.trace is not None:
        seen |= {"topk": _topk(layer, step), "route_ids": routes, "route_weights": weights}
        shown = {k: None if v is None else torch.from_numpy(v)[None, None] for k, v in seen.items()}
        step.trace.append(shown)
    return expand(y, h, post, comb), last_pre


def _topk(layer: Block, step: Step) -> NDArray[np.int64] | None:
    """The selection of a layer with -1 behind it, as wide as `Attention` makes it."""
    attn, chooser = layer.attn, layer.attn.sources[1]
    if chooser is None:
        return None
    chosen = step.selection[chooser]
    width = min(attn.cfg.index_topk, step.count(attn.ratio))
    return np.pad(chosen, (0, width - len(chosen)), constant_values=-1)
