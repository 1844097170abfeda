"""One transformer block: two sublayers between four residual streams, with the lagged pre-mix.

Shapes: B batch, T tokens, R = B * T rows, S streams, d hidden.
Source: docs/reference/model.md, "Streams".
"""

from __future__ import annotations

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
from dslearn.model.plan import Found, Given, Left, Plan
from dslearn.model.rope import RopeTable
from dslearn.model.stage import stage


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

    def given(self, call: Call, engram_rows: Tensor | None, image: Tensor | None) -> Given:
        """What `call` hands to this layer: engram_rows [B, T, L, C] row ids, image [R] or None."""
        rows = None
        if self.engram is not None:
            assert engram_rows is not None, "an Engram layer comes with hashed rows"
            rows = self.engram.look_up(engram_rows[:, :, self.engram.index].flatten(0, 1))
        return Given(call.plan(self.attn.ratio), call.pools(self.attn.layer), rows, image)

    def forward(  # noqa: PLR0913 - what goes from layer to layer
        self,
        h: Tensor,
        pre: Tensor,
        given: Given,
        chosen: Tensor | None = None,
        candidates: Tensor | None = None,
        learning: Call | None = None,
    ) -> tuple[Tensor, Tensor, Left]:
        """h [R, S, d] of R = B * T rows, pre [R, S] of the sublayer before -> both for the next.

        Args:
            h, pre: the streams, and how the first sublayer reads them.
            given: what the call hands to this layer.
            chosen, candidates: the latest, as in `Found`.
            learning: the call, if it has gradients and no pools.
        """
        gate, attn = None, self.attn
        if self.engram is not None:
            assert given.rows is not None, "an Engram layer comes with rows of its table"
            h, gate = self.engram_half(h, given.rows, given.image)
        read = h, pre
        if learning is not None:
            h, next_pre, found = self._learn(h, pre, learning)
        else:
            assert given.pools is not None, "a call without gradients has pools"
            borrowed = chosen if attn.ratio and attn.indexer is None else None
            filters = candidates if attn.filters else None
            h, next_pre, found = self.attention_half(
                h, pre, given.plan, given.pools, borrowed, filters
            )
        h, last_pre, ids, weights = self.expert_half(h, next_pre, given.image)
        return h, last_pre, Left(found, *read, gate, ids, weights)

    def _learn(self, h: Tensor, pre: Tensor, call: Call) -> tuple[Tensor, Tensor, Found]:
        """The attention sublayer of a call with gradients."""
        next_pre, post, comb = self.hc_attn(h)
        x = self.attn_norm(collapse(h, pre, self.arith))
        y = learn(self.attn, x.unflatten(0, call.positions.shape), call).flatten(0, 1)
        chosen = None if self.attn.indexer is None else call.chosen
        return expand(y, h, post, comb, self.arith), next_pre, Found(chosen=chosen)

    # What follows takes and returns tensors alone: `torch.compile` captures each as one graph, and
    # layers of the same role share it.

    @stage("engram")
    def engram_half(self, h: Tensor, rows: Tensor, dead: Tensor | None) -> tuple[Tensor, Tensor]:
        """h [R, S, d], table rows [R, C * E], dead [R] bool or None -> h, gates [R, S]."""
        assert self.engram is not None, "an Engram layer"
        return self.engram(h, rows, dead)

    @stage("attention")
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

    @stage("experts")
    def expert_half(
        self, h: Tensor, pre: Tensor, image: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """h [R, S, d], pre [R, S], image [R] bool or None -> h, pre of the next layer, and the
        experts that each row takes with their weights, [R, k] each."""
        next_pre, post, comb = self.hc_ffn(h)
        y, ids, weights = self.ffn(self.ffn_norm(collapse(h, pre, self.arith)), image)
        return expand(y, h, post, comb, self.arith), next_pre, ids, weights
