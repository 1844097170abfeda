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
from dslearn.model.attention_dense import learn
from dslearn.model.caches import Pools
from dslearn.model.call import Call
from dslearn.model.engram import Engram
from dslearn.model.hyper import HyperConnection, collapse, expand
from dslearn.model.linear import Norm
from dslearn.model.moe import MoE
from dslearn.model.plan import Found, Plan
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
            h, gate = self.engram_half(h, self.engram.look_up(ids.flatten(0, 1)), image)
            seen.update(engram_ids=ids, engram_gates=gate.unflatten(0, shape))
        seen.update(streams=h.unflatten(0, shape), pre=pre.unflatten(0, shape))
        h, next_pre, shares = self._attend(h, pre, call)
        h, last_pre, ids, weights = self.expert_half(h, next_pre, image)
        if call.trace is not None:
            chosen = call.chosen if self.attn.ratio else None
            seen.update(
                topk=None if chosen is None else chosen.long(),
                route_ids=ids.unflatten(0, shape),
                route_weights=weights.unflatten(0, shape),
            )
            if shares is not None:
                seen["shares"] = shares
            call.trace.append(seen)
        return h, last_pre

    def _attend(self, h: Tensor, pre: Tensor, call: Call) -> tuple[Tensor, Tensor, Tensor | None]:
        """The attention sublayer on the host: -> streams, the next pre, shares if asked for."""
        attn, state = self.attn, call.state
        if state is None:
            next_pre, post, comb = self.hc_attn(h)
            x = self.attn_norm(collapse(h, pre, self.arith))
            y = learn(attn, x.unflatten(0, call.positions.shape), call).flatten(0, 1)
            return expand(y, h, post, comb, self.arith), next_pre, None
        borrows = attn.ratio and attn.indexer is None
        h, next_pre, found = self.attention_half(
            h,
            pre,
            call.plan(attn.ratio),
            state.pools(attn.layer),
            call.chosen if borrows else None,
            call.candidates if attn.filters else None,
        )
        call.keep(attn.layer, found)
        return h, next_pre, found.shares

    # What follows takes and returns tensors alone: `torch.compile` captures each as one graph, and
    # layers of the same role share it.

    def engram_half(self, h: Tensor, rows: Tensor, dead: Tensor | None) -> tuple[Tensor, Tensor]:
        """h [R, S, d], table rows [R, C * E], dead [R] bool or None -> h, gates [R, S]."""
        assert self.engram is not None, "an Engram layer"
        return self.engram(h, rows, dead)

    def attention_half(
        self,
        h: Tensor,
        pre: Tensor,
        plan: Plan,
        pools: Pools,
        chosen: Tensor | None = None,
        candidates: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Found]:
        """h [R, S, d], pre [R, S] -> h, pre of the next sublayer, what `Attention.forward` found.

        The rest is as in `Attention.forward`; pools are written.
        """
        # The streams are read with the weights computed one sublayer earlier.
        next_pre, post, comb = self.hc_attn(h)
        x = self.attn_norm(collapse(h, pre, self.arith)).unflatten(0, plan.positions.shape)
        y, found = self.attn(x, plan, pools, chosen, candidates)
        return expand(y.flatten(0, 1), h, post, comb, self.arith), next_pre, found

    def expert_half(
        self, h: Tensor, pre: Tensor, image: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """h [R, S, d], pre [R, S], image [R] bool or None -> h, pre of the next layer, and the
        experts that each row takes with their weights, [R, k] each."""
        next_pre, post, comb = self.hc_ffn(h)
        y, ids, weights = self.ffn(self.ffn_norm(collapse(h, pre, self.arith)), image)
        return expand(y, h, post, comb, self.arith), next_pre, ids, weights
