"""One transformer block: two sublayers between four residual streams, with the lagged pre-mix.

Shapes: B batch, T tokens, R = B * T rows, S streams, d hidden.
Source: docs/reference/model.md, "Streams".
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from dslearn.config import Config
from dslearn.model.arith import Arith
from dslearn.model.attention import Attention
from dslearn.model.call import Call
from dslearn.model.engram import Engram
from dslearn.model.hyper import HyperConnection, collapse, expand
from dslearn.model.linear import Norm
from dslearn.model.moe import MoE
from dslearn.model.rope import RopeTable


class Block(nn.Module):
    """Layer `layer` of the model, with its Engram in front where the config has one."""

    def __init__(self, cfg: Config, layer: int, arith: Arith, tables: dict[str, RopeTable]) -> None:
        super().__init__()
        self.arith = arith
        self.attn_norm = Norm(cfg.hidden_size, cfg.rms_norm_eps, arith)
        self.ffn_norm = Norm(cfg.hidden_size, cfg.rms_norm_eps, arith)
        self.hc_attn = HyperConnection(cfg, arith)
        self.hc_ffn = HyperConnection(cfg, arith)
        self.attn = Attention(cfg, layer, arith, tables)
        self.ffn = MoE(cfg, arith)
        self.engram: Engram | None = None
        if layer in cfg.engram_layer_ids:
            self.engram = Engram(cfg, cfg.engram_layer_ids.index(layer), arith)

    def forward(
        self, h: Tensor, pre: Tensor, call: Call, engram_rows: Tensor | None, image: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """h [R, S, d] of R = B * T rows, pre [R, S] of the sublayer before -> both for the next.

        engram_rows [B, T, L, C] row ids or None; image [R] bool or None.
        """
        shape = call.positions.shape
        seen: dict[str, Any] = {"engram_ids": None, "engram_gates": None}
        if self.engram is not None:
            assert engram_rows is not None, "an Engram layer comes with hashed rows"
            ids = engram_rows[:, :, self.engram.index]
            h, gate = self.engram(h, ids.flatten(0, 1), image)
            seen.update(engram_ids=ids, engram_gates=gate.unflatten(0, shape))
        seen.update(streams=h.unflatten(0, shape), pre=pre.unflatten(0, shape))
        # The streams are read with the weights computed one sublayer earlier.
        next_pre, post, comb = self.hc_attn(h)
        x = self.attn_norm(collapse(h, pre, self.arith))
        y = self.attn(x.unflatten(0, shape), call).flatten(0, 1)
        h = expand(y, h, post, comb, self.arith)
        last_pre, post, comb = self.hc_ffn(h)
        x = self.ffn_norm(collapse(h, next_pre, self.arith))
        y, ids, weights = self.ffn(x, image)
        h = expand(y, h, post, comb, self.arith)
        if call.trace is not None:
            chooser = self.attn.sources[1]
            seen.update(
                topk=None if chooser is None else call.selection[chooser],
                route_ids=ids.unflatten(0, shape),
                route_weights=weights.unflatten(0, shape),
            )
            if call.shares:
                seen["shares"] = call.shares[-1]
            call.trace.append(seen)
        return h, last_pre
