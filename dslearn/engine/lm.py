"""`LM`: a loaded model with its tokenizer. Shapes: B batch, T tokens, V vocabulary."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from importlib import import_module, resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from dslearn.config import Config
from dslearn.engine.sampler import Sampler, Sampling
from dslearn.engine.text import StopFilter, TextStream
from dslearn.errors import CheckpointError, UsageError
from dslearn.files import need_directory
from dslearn.model import Model, State, stage
from dslearn.model.chunks import in_chunks
from dslearn.model.loading import load_model, read_tokenizer
from dslearn.numerics import Numerics

PREFILL_CHUNK = 512  # bounds the keys gathered at once
GRAPH_ROOM = 256  # in graph modes states have room for a multiple of this: few shapes


def model_directory(name: str | Path) -> Path:
    """The directory of a shipped model name ("tiny") or of a path.

    Raises:
        CheckpointError: no directory.
    """
    if str(name) == "tiny":
        return Path(str(resources.files("dslearn") / "data" / "tiny"))
    need_directory(Path(name), ships=True)
    return Path(name)


def load(
    name: str | Path,
    numerics: Numerics | None = None,
    *,
    engram_token_map: np.ndarray | Tensor | None = None,
    engram_pad_id: int | None = None,
) -> LM:
    """Load "tiny" or a checkpoint directory.

    Args:
        name: a shipped model's name or a directory with config.json and safetensors.
        numerics: rounding switches, default `Numerics()`.
        engram_token_map, engram_pad_id: see `dslearn.model.loading.load_model`.

    Raises:
        CheckpointError, ConfigError: what the directory holds cannot be run; the text says why.
    """
    directory = model_directory(name)
    model = load_model(
        directory, numerics, engram_token_map=engram_token_map, engram_pad_id=engram_pad_id
    )
    return LM(model, read_tokenizer(directory))


class LM:
    """A language model: `forward` for logits, `generate` for text."""

    def __init__(self, model: Model, tokenizer: Tokenizer | None) -> None:
        self.model = model
        self.tokenizer = tokenizer
        if any(os.environ.get(name) for name in (stage.MODE, stage.TIMING)):
            import_module("dslearn.regions").install()  # slow to import, so only where it is asked
        if tokenizer is not None:  # a special token's name in a prompt is just text
            tokenizer.encode_special_tokens = True

    @property
    def config(self) -> Config:
        """The checkpoint's config."""
        return self.model.cfg

    def new_state(self, batch: int = 1, max_len: int = 512) -> State:
        """Empty caches for `batch` sequences of at most `max_len` tokens.

        In graph modes there is room for up to 255 more, so that texts of many lengths share graphs.
        """
        if stage.compiles():
            rounded = max_len + -max_len % GRAPH_ROOM
            max_len = max(max_len, min(rounded, self.config.max_position_embeddings))
        return self.model.new_state(batch, max_len)

    def forward(  # noqa: PLR0913 - those of `Model.forward`
        self,
        ids: Tensor | Sequence[Sequence[int]],
        state: State | None = None,
        lengths: Tensor | list[int] | None = None,
        lanes: Tensor | None = None,
        *,
        embeds: Tensor | None = None,
        image_mask: Tensor | None = None,
        trace: dict[str, Any] | None = None,
    ) -> Tensor:
        """Logits fp32 [B, T, V] of ids [B, T]; arguments and errors as `Model.forward`.

        In graph modes, tokens that a state reads go through in chunks of one size.
        """
        ids = torch.as_tensor(ids)
        asked = any(x is not None for x in (embeds, image_mask, trace))
        with torch.inference_mode(), stage.step():
            if state is not None and not asked and ids.shape[1:] > (1,) and stage.compiles():
                return in_chunks(self.model, ids, state, lengths, lanes)
            return self.model(
                ids, state, lengths, lanes, embeds=embeds, image_mask=image_mask, trace=trace
            )

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, the begin token first; special tokens in the text stay text."""
        tokenizer = self._need_tokenizer()
        return [self.config.bos_token_id, *tokenizer.encode(text, add_special_tokens=False).ids]

    def generate(
        self,
        prompt: str,
        max_new_tokens: int = 64,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int | None = None,
        stop: Sequence[str] = (),
    ) -> Iterator[str]:
        """Continue `prompt`: an iterator over pieces of text, whole characters each.

        Args:
            prompt: text; its own characters are not repeated in the output.
            max_new_tokens: tokens to produce at most, at least 1.
            temperature, top_p, seed: see `Sampling`.
            stop: strings that end the text; none of them is shown.

        Raises:
            UsageError: at the call, not at the first piece: an empty prompt, one that leaves no
                room for the new tokens, or options out of range.
        """
        sampler, stops = Sampler(Sampling(temperature, top_p, seed)), StopFilter(stop)
        if not prompt:
            raise UsageError("the prompt is empty: give at least one character")
        if max_new_tokens < 1:
            raise UsageError(f"max_new_tokens={max_new_tokens}: must be at least 1")
        ids, limit = self.encode(prompt), self.config.max_position_embeddings
        if len(ids) + max_new_tokens > limit:
            raise UsageError(
                f"prompt of {len(ids)} tokens plus {max_new_tokens} new ones: this model knows "
                f"{limit} positions; shorten one of them"
            )
        return self.pieces(self.tokens(ids, max_new_tokens, sampler), stops)

    def tokens(self, ids: list[int], count: int, sampler: Sampler | None = None) -> Iterator[int]:
        """Up to `count` ids that follow `ids`, the end token excluded; greedy without a sampler."""
        sampler = sampler or Sampler(Sampling())
        state = self.new_state(1, len(ids) + count)
        for begin in range(0, len(ids), PREFILL_CHUNK):
            logits = self.forward([ids[begin : begin + PREFILL_CHUNK]], state)
        for left in range(count, 0, -1):
            token = sampler(logits[0, -1].numpy())
            if token == self.config.eos_token_id:
                return
            yield token
            if left > 1:
                logits = self.forward([[token]], state)

    def pieces(self, tokens: Iterator[int], stops: StopFilter) -> Iterator[str]:
        """The text of ids as they come, up to a stop string."""
        stream = TextStream(self._need_tokenizer())
        for token in tokens:
            piece = stops.push(stream.push(token))
            if piece:
                yield piece
            if stops.stopped:
                return
        rest = stops.push(stream.flush())
        rest += stops.flush()
        if rest:
            yield rest

    def _need_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise CheckpointError(
                "this checkpoint has no tokenizer.json: text needs one; token ids go to forward()"
            )
        return self.tokenizer
