"""The DeepSeek-V4.1 text model, top level: embed, blocks, collapse, head.

Shapes: B batch, T tokens of a call, S streams, d hidden, V vocabulary.
Source: docs/reference/model.md.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from dslearn.config import Config
from dslearn.model import chip, chip_linear
from dslearn.model.arith import Arith
from dslearn.model.block import Block
from dslearn.model.caches import of_lanes
from dslearn.model.call import Call
from dslearn.model.checked import checked
from dslearn.model.engram_hash import DEAD, EngramHash
from dslearn.model.hyper import collapse
from dslearn.model.linear import Norm
from dslearn.model.plan import Found, Given, Left
from dslearn.model.ring import Span
from dslearn.model.rope import RopeTable
from dslearn.model.stage import compiles, part, stage
from dslearn.model.state import State
from dslearn.model.step.decode import decode, possible
from dslearn.model.trace import told
from dslearn.numerics import Numerics

PLAN = "plan (host)"  # of a step: checks, embedding, slots, masks, Engram rows; and what is kept


def one_kind() -> AbstractContextManager[Any]:
    """Tensors made in inference mode and outside are two kinds to a graph: here all are of one."""
    wanted = compiles() and not torch.is_grad_enabled()
    return torch.inference_mode() if wanted else nullcontext()


class Model(nn.Module):
    """The whole forward pass for any V4.1 config.

    Args:
        cfg: sizes and layer roles.
        numerics: rounding switches.
        engram_hash: token map and hashing; needed when the config has Engram layers.

    Weights are uninitialised until `weights.load` (or a trainer) fills them.
    """

    def __init__(
        self, cfg: Config, numerics: Numerics | None = None, engram_hash: EngramHash | None = None
    ) -> None:
        super().__init__()
        self.cfg = cfg
        block = cfg.quantization.weight_block_size if cfg.quantization else 32
        self.arith = Arith(numerics or Numerics(), block)
        self.engram_hash = engram_hash
        rope = cfg.qk_rope_head_dim
        self.tables = {
            "local": RopeTable(rope, cfg.rope_theta, None),
            "compress": RopeTable(rope, cfg.compress_rope_theta, cfg.rope_scaling),
        }
        self.embed = nn.Embedding(cfg.vocab_size, cfg.hidden_size)
        self.layers = nn.ModuleList(
            Block(cfg, i, self.arith, self.tables) for i in range(cfg.num_hidden_layers)
        )
        self.norm = Norm(cfg.hidden_size, cfg.rms_norm_eps, self.arith)
        self.head = nn.Linear(cfg.hidden_size, cfg.vocab_size, bias=False)
        self.fixed_counts = False  # see `Call.fixed`; set by who compiles the halves of the blocks

    def place(self) -> None:
        """See `chip.prepare`."""
        for layer in self.layers:
            chip.prepare(layer)
        if chip.serves(self.head.weight):
            chip_linear.plain(self.head.weight, self.numerics)

    @property
    def numerics(self) -> Numerics:
        """The switches in force."""
        return self.arith.numerics

    def new_state(self, batch: int = 1, max_len: int = 512) -> State:
        """Empty caches for `batch` sequences of up to `max_len` tokens."""
        return State(self.cfg, self.numerics, batch, max_len)

    def forward(  # noqa: PLR0913 - all but the first are seldom given
        self,
        ids: Tensor,
        state: State | None = None,
        lengths: Tensor | list[int] | None = None,
        lanes: Tensor | None = None,
        *,
        embeds: Tensor | None = None,
        image_mask: Tensor | None = None,
        trace: dict[str, Any] | None = None,
    ) -> Tensor:
        """Logits of every position.

        Args:
            ids: int64 [B, T] token ids.
            state: continued and advanced; None scores the call from position 0.
            lengths: real tokens of each row of a right-padded ragged batch [B]; default T.
            lanes: which sequence of the state each row continues, int64 [B]; default all, in order.
            embeds: [B, T, d] rows that replace the embedding where image_mask is True.
            image_mask: bool [B, T], image positions (own router bias, dead for Engram).
            trace: a dict that receives "layers", one dict per layer. If it comes with "shares"
                set, each has "shares" too: attention of the heads to the window's W slots, to the
                K entries of "topk" and to the sink, [B, T, H, W + K + 1].

        Returns:
            fp32 [B, T, V]; rows past a sequence's length hold no meaning.

        Raises:
            UsageError: ids, lengths or embeds of the wrong shape, type or range.
            StateError: a state of another batch size or numerics, or without room.
        """
        with one_kind():
            with part(PLAN):
                counts = checked(self, ids, state, lengths, lanes, embeds, image_mask)
                watched = trace is not None and trace.get("shares")
                alone = lanes is None and image_mask is None and not watched
                quick = alone and possible(self, ids, counts)
            if state and quick:
                with part("step (NumPy)"):
                    return decode(self, ids, state, counts, trace)
            with part(PLAN):
                x = self.embed(ids)
                if embeds is not None and image_mask is not None:
                    x = torch.where(image_mask.unsqueeze(-1), embeds.to(x.dtype), x)
                call = self._call(ids, state, (counts, lanes), self._learns(x), bool(watched))
                if trace is not None:
                    call.learning.losses = trace.get("index_losses")
                x = self.arith.round(x)
            return self._run(ids, x, call, image_mask, trace)

    def _run(
        self,
        ids: Tensor,
        x: Tensor,
        call: Call,
        image_mask: Tensor | None,
        trace: dict[str, Any] | None,
    ) -> Tensor:
        """Logits [B, T, V] of embeddings x [B, T, d]: what the host does before and after."""
        state, streams = call.state, self.cfg.hc_mult
        with part(PLAN):
            h = x.flatten(0, 1).unsqueeze(1).repeat(1, streams, 1)  # [R, S, d], R = B * T rows
            pre = torch.zeros(len(h), streams)
            pre[:, 0] = 1.0
            image = None if image_mask is None else image_mask.flatten().clone()
            rows = self._engram_rows(ids, call, image_mask)
            given = [cast(Block, layer).given(call, rows, image) for layer in self.layers]
        run = self.step if state else partial(self._layers, learning=call)
        logits, left = run(h, pre, given, traced=trace is not None)
        if state:
            with part(PLAN):
                call.keep(one.found if isinstance(one, Left) else one for one in left)
                state.advance(call.span.lengths, call.span.lanes)
        if trace is not None:
            trace["layers"] = told(self.cfg, cast(list[Left], left), rows, ids.shape)
        return logits.unflatten(0, ids.shape)

    @stage("step", whole=True)
    def step(
        self, h: Tensor, pre: Tensor, given: list[Given], traced: bool = False
    ) -> tuple[Tensor, list[Left] | list[Found]]:
        """All layers and the head: streams h [R, S, d], pre [R, S] -> logits [R, V].

        given: one per layer. Also gives what each layer left, or, if not `traced`, found.
        """
        return self._layers(h, pre, given, traced)

    def _layers(
        self,
        h: Tensor,
        pre: Tensor,
        given: list[Given],
        traced: bool,
        learning: Call | None = None,
    ) -> tuple[Tensor, list[Left] | list[Found]]:
        chosen = candidates = None
        left = []
        for layer, own in zip(self.layers, given, strict=True):
            h, pre, one = layer(h, pre, own, chosen, candidates, learning)
            chosen = chosen if one.found.chosen is None else one.found.chosen
            candidates = candidates if one.found.candidates is None else one.found.candidates
            left.append(one if traced else one.found)
        return self.output(h, pre), left

    @stage("head")
    def output(self, h: Tensor, pre: Tensor) -> Tensor:
        """Streams h [R, S, d] read with pre [R, S] -> logits [R, V]."""
        x = self.norm(collapse(h, pre, self.arith))
        return self.arith.linear_fp32(x, self.head.weight)

    def _learns(self, x: Tensor) -> bool:
        """Whether a call on the embeddings x takes part in a backward pass."""
        if not torch.is_grad_enabled():
            return False
        return x.requires_grad or any(p.requires_grad for p in self.parameters())

    def _call(
        self,
        ids: Tensor,
        state: State | None,
        rows: tuple[Tensor, Tensor | None],
        learning: bool,
        watched: bool,
    ) -> Call:
        """Without a state and without gradients, the call gets a state of its own."""
        if state is None and not learning:
            state = self.new_state(*ids.shape)
        lengths, lanes = rows
        lanes = None if lanes is None else lanes.clone()
        start = torch.zeros(len(ids), dtype=torch.int64)
        if state:
            start = of_lanes(state.positions, lanes).clone()
        if compiles() and not bool(start.any()):
            chip.prepare(self)  # graphs take weights as they were placed last
        span = Span(start, lengths, ids.shape[1], self.cfg.sliding_window, lanes)
        return Call(self.tables, span, state, compiles() or self.fixed_counts, watched)

    def _engram_rows(self, ids: Tensor, call: Call, image: Tensor | None) -> Tensor | None:
        """Row ids [B, T, L, C]; appends the compressed ids to the state's history."""
        if self.engram_hash is None:
            return None
        tokens, reach = self.engram_hash.compress(ids, image), self.engram_hash.reach
        state = call.state
        if state is None:
            before = tokens.new_full((len(ids), reach), DEAD)
            return self.engram_hash.rows(torch.cat((before, tokens), 1))
        lanes = torch.arange(len(ids)) if call.span.lanes is None else call.span.lanes
        batch = lanes[:, None]
        before = state.history[batch, call.span.start[:, None] + torch.arange(reach)]
        real = torch.arange(ids.shape[1]) < call.span.lengths[:, None]
        slots = torch.where(real, call.positions + reach, state.history.shape[1] - 1)
        state.history[batch, slots] = torch.where(real, tokens, 0)
        return self.engram_hash.rows(torch.cat((before, tokens), 1))
