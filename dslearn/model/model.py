"""The DeepSeek-V4.1 text model, top level: embed, blocks, collapse, head.

Shapes: B batch, T tokens of a call, S streams, d hidden, V vocabulary.
Source: docs/reference/model.md.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dslearn.config import Config
from dslearn.errors import StateError, UsageError
from dslearn.model import chip, chip_linear
from dslearn.model.arith import Arith
from dslearn.model.block import Block
from dslearn.model.call import Call
from dslearn.model.engram_hash import DEAD, EngramHash
from dslearn.model.hyper import collapse
from dslearn.model.linear import Norm
from dslearn.model.ring import Span
from dslearn.model.rope import RopeTable
from dslearn.model.state import State
from dslearn.model.step.decode import decode, possible
from dslearn.numerics import Numerics


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

    def forward(
        self,
        ids: Tensor,
        state: State | None = None,
        lengths: Tensor | list[int] | None = None,
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
        counts = self._check(ids, state, lengths, embeds, image_mask)
        watched = trace is not None and trace.get("shares")
        if state and image_mask is None and not watched and possible(self, ids, counts):
            return decode(self, ids, state, counts, trace)
        x = self.embed(ids)
        if embeds is not None and image_mask is not None:
            x = torch.where(image_mask.unsqueeze(-1), embeds.to(x.dtype), x)
        call = self._call(ids, state, counts, learning=self._learns(x))
        if trace is not None:
            call.trace = trace["layers"] = []
            call.watched = bool(watched)
            call.learning.losses = trace.get("index_losses")
        rows = self._engram_rows(ids, call, image_mask)
        x = self.arith.round(x)
        streams = self.cfg.hc_mult
        h = x.flatten(0, 1).unsqueeze(1).repeat(1, streams, 1)  # [R, S, d], R = B * T rows
        pre = torch.zeros(len(h), streams)
        pre[:, 0] = 1.0
        image = None if image_mask is None else image_mask.flatten()
        for layer in self.layers:
            h, pre = layer(h, pre, call, rows, image)
        if state is not None:
            state.advance(counts)
        return self.output(h, pre).unflatten(0, ids.shape)

    def output(self, h: Tensor, pre: Tensor) -> Tensor:
        """Streams h [R, S, d] read with pre [R, S] -> logits [R, V]."""
        x = self.norm(collapse(h, pre, self.arith))
        return self.arith.linear_fp32(x, self.head.weight)

    def _learns(self, x: Tensor) -> bool:
        """Whether a call on the embeddings x takes part in a backward pass."""
        if not torch.is_grad_enabled():
            return False
        return x.requires_grad or any(p.requires_grad for p in self.parameters())

    def _call(self, ids: Tensor, state: State | None, lengths: Tensor, *, learning: bool) -> Call:
        """Without a state and without gradients, the call gets a state of its own."""
        if state is None and not learning:
            state = self.new_state(*ids.shape)
        start = state.positions if state else torch.zeros(len(ids), dtype=torch.int64)
        span = Span(start, lengths, ids.shape[1], self.cfg.sliding_window)
        return Call(self.tables, span, state, fixed=self.fixed_counts)

    def _engram_rows(self, ids: Tensor, call: Call, image: Tensor | None) -> Tensor | None:
        """Row ids [B, T, L, C]; appends the compressed ids to the state's history."""
        if self.engram_hash is None:
            return None
        tokens, reach = self.engram_hash.compress(ids, image), self.engram_hash.reach
        state = call.state
        if state is None:
            before = tokens.new_full((len(ids), reach), DEAD)
            return self.engram_hash.rows(torch.cat((before, tokens), 1))
        batch = torch.arange(len(ids))[:, None]
        before = state.history[batch, call.span.start[:, None] + torch.arange(reach)]
        real = torch.arange(ids.shape[1]) < call.span.lengths[:, None]
        slots = torch.where(real, call.positions + reach, state.history.shape[1] - 1)
        state.history[batch, slots] = torch.where(real, tokens, 0)
        return self.engram_hash.rows(torch.cat((before, tokens), 1))

    def _check(
        self,
        ids: Tensor,
        state: State | None,
        lengths: Tensor | list[int] | None,
        embeds: Tensor | None,
        image: Tensor | None,
    ) -> Tensor:
        if ids.dim() != 2 or ids.shape[1] == 0 or ids.dtype not in (torch.int64, torch.int32):
            raise UsageError(
                f"ids of shape {tuple(ids.shape)}, {ids.dtype}: must be int64 [batch, tokens >= 1]"
            )
        if bool((ids < 0).any()) or bool((ids >= self.cfg.vocab_size).any()):
            raise UsageError(
                f"token ids {int(ids.min())}..{int(ids.max())}: must be "
                f"0..{self.cfg.vocab_size - 1}"
            )
        b, t = ids.shape
        counts = torch.full((b,), t) if lengths is None else torch.as_tensor(lengths)
        whole = not counts.is_floating_point() and counts.dtype is not torch.bool
        if (
            not whole
            or counts.shape != (b,)
            or bool((counts < 0).any())
            or bool((counts > t).any())
        ):
            raise UsageError(
                f"lengths={counts.tolist()}: one per row ({b}), each a whole number 0..{t}"
            )
        if embeds is not None and (image is None or embeds.shape != (b, t, self.cfg.hidden_size)):
            raise UsageError(
                f"embeds of shape {tuple(embeds.shape)}: needs image_mask and shape "
                f"[{b}, {t}, {self.cfg.hidden_size}]"
            )
        if image is not None and (image.shape != (b, t) or image.dtype != torch.bool):
            raise UsageError(
                f"image_mask of {tuple(image.shape)}, {image.dtype}: must be bool [{b}, {t}]"
            )
        if state is not None:
            if state.batch != b or state.numerics != self.numerics:
                raise StateError(
                    f"the state holds {state.batch} sequences under {state.numerics}; this call "
                    f"has {b} under {self.numerics}: make a new state"
                )
            state.check_room(counts)
        elif t > self.cfg.max_position_embeddings:
            raise UsageError(
                f"{t} tokens: this model knows {self.cfg.max_position_embeddings} positions"
            )
        return counts
