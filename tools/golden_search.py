"""What makes a continuation golden: rules and stress tests that `make_golden.py` searches with.

A golden token must be the same on every machine, so its lead must be much larger than anything
that rounding can do. Quantisers turn the last bit of a sum into a visible step, so leads alone do
not protect a token: every product is disturbed on purpose and the lead must survive.

Shapes: B rows, S new tokens of a continuation, T tokens of prompt and continuation, V vocabulary.
"""

from __future__ import annotations

import ast
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from dslearn.engine.lm import LM
from dslearn.model import Model
from dslearn.model.arith import Arith

RELATIVE = 2.0**-22  # a few roundings of an fp32 sum
ROWS = 8  # reruns that share a forward pass, each with its own noise
AHEAD = 3  # tokens of the file that a promising prompt already foresees
LONGEST_STAGE = 16  # tokens between two sievings of a batch


class Noisy(Arith):
    """The model's arithmetic with every product (linears, scores, weighted sums) disturbed.

    Args:
        arith: what it replaces.
        seed: of the noise, normal with a relative deviation of 2^-22.
        bf16: round disturbed products to bf16 too, but for those that the chip keeps in fp32
            (router, streams, head).
    """

    def __init__(self, arith: Arith, seed: int, bf16: bool = False) -> None:
        super().__init__(arith.numerics, arith.block)
        self.generator, self.bf16 = torch.Generator().manual_seed(seed), bf16

    def _noise(self, x: Tensor) -> Tensor:
        return x + x * (RELATIVE * torch.randn(x.shape, generator=self.generator))

    def _cast(self, x: Tensor) -> Tensor:
        return x.bfloat16().float() if self.bf16 else x

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """See `Arith.linear`."""
        return self._cast(self._noise(super().linear(x, weight)))

    def linear_fp32(self, x: Tensor, weight: Tensor) -> Tensor:
        """See `Arith.linear_fp32`."""
        return self._noise(super().linear(x, weight))

    def pairs(self, a: Tensor, b: Tensor) -> Tensor:
        """See `Arith.pairs`."""
        return self._cast(self._noise(super().pairs(a, b)))

    def grouped(self, x: Tensor, weight: Tensor) -> Tensor:
        """See `Arith.grouped`."""
        out = super().grouped(x, weight)
        return out if self.numerics.row_invariant else self._cast(self._noise(out))


@contextmanager
def arithmetic(model: Model, arith: Arith) -> Iterator[None]:
    """Within the block every module of `model` computes with `arith`."""
    parts = [part for part in model.modules() if hasattr(part, "arith")]
    usual = model.arith
    try:
        for part in parts:
            part.arith = arith
        yield
    finally:
        for part in parts:
            part.arith = usual


def leads(logits: Tensor, tokens: Sequence[int]) -> Tensor:
    """Logit of each token minus the best other one: logits [..., S, V] -> [..., S]."""
    index = torch.tensor(tokens).expand(logits.shape[:-1]).unsqueeze(-1)
    others = logits.scatter(-1, index, -torch.inf).amax(-1)
    return logits.gather(-1, index).squeeze(-1) - others


def teacher_forced(lm: LM, ids: list[int], tokens: list[int], rows: int) -> Tensor:
    """Logits [rows, S, V] that each of `tokens` after `ids` is chosen from, in one forward."""
    text = torch.tensor([ids + tokens[:-1]]).repeat(rows, 1)
    return lm.forward(text)[:, len(ids) - 1 :]


def reruns(
    lm: LM, ids: list[int], tokens: list[int], count: int, *, bf16: bool, seed: int = 0
) -> Iterator[Tensor]:
    """Disturbed logits [ROWS, S, V], until `count` reruns have been made."""
    for start in range(0, count, ROWS):
        with arithmetic(lm.model, Noisy(lm.model.arith, seed + start, bf16)):
            logits = teacher_forced(lm, ids, tokens, min(ROWS, count - start))
        yield logits


def windows(lm: LM, texts: list[str], size: int, seed: int) -> Iterator[list[int]]:
    """Begin and the first `size` - 1 tokens from a line beginning, in a fixed random order."""
    starts = [
        (number, at)
        for number, text in enumerate(texts)
        for at in range(len(text))
        if (at == 0 or text[at - 1] == "\n") and text[at : at + 80].partition("\n")[0].strip()
    ]
    for place in np.random.default_rng([seed, size]).permutation(len(starts)):
        number, at = starts[place]
        ids = lm.encode(texts[number][at : at + 12 * size])[:size]
        if len(ids) == size:
            yield ids


def promising(
    lm: LM, batch: list[list[int]], low: int, high: int, floor: float
) -> Iterator[tuple[str, list[int]]]:
    """The most predictable prompt of each window, if the model foresees what follows it.

    A window of `high` + AHEAD tokens is scored in one pass. A prompt of `low` to `high` tokens is
    worth decoding if the next AHEAD tokens of the file are the model's own choice, with a lead of
    at least `floor`.
    """
    ids = torch.tensor(batch)
    top = lm.forward(ids)[:, :-1].topk(2)
    sure = top.values[..., 0] - top.values[..., 1]
    sure = sure.masked_fill(top.indices[..., 0] != ids[:, 1:], 0.0)
    ahead = sure.unfold(1, AHEAD, 1).amin(-1)[:, low - 1 : high]  # column 0: a prompt of `low`
    best, place = ahead.max(1)
    for row in (best >= floor).nonzero().flatten().tolist():
        chosen = batch[row][: low + int(place[row])]
        prompt = lm.tokenizer.decode(chosen[1:]) if lm.tokenizer else ""
        if prompt.isascii() and lm.encode(prompt) == chosen:
            yield prompt, chosen


def decode(lm: LM, ids: list[int], count: int) -> tuple[list[int], Tensor]:
    """Greedy tokens and their logits [count, V], step by step as `generate` makes them."""
    state = lm.new_state(1, len(ids) + count)
    rows = [lm.forward([ids], state)[0, -1]]
    tokens = [int(rows[0].argmax())]
    while len(tokens) < count:
        rows.append(lm.forward([[tokens[-1]]], state)[0, -1])
        tokens.append(int(rows[-1].argmax()))
    return tokens, torch.stack(rows)


def decode_batch(
    lm: LM, prompts: list[list[int]], count: int, floor: float
) -> dict[int, list[int]]:
    """Greedy tokens of the prompts that stay above `floor` and `allowed` all the way.

    -> index of the prompt -> `count` tokens. Every few tokens what fell below is thrown out and
    the batch made anew: soon at first, when most of it goes, and later for long prompts, which
    cost more to read again.
    """
    alive: dict[int, list[int]] = {i: [] for i in range(len(prompts))}
    done, first = 0, max(2, max(map(len, prompts), default=0) // 24)
    while alive and done < count:
        steps = min(max(first, done), LONGEST_STAGE, count - done)
        alive = _stage(lm, prompts, alive, steps, floor)
        done += steps
    return alive


def _stage(
    lm: LM, prompts: list[list[int]], alive: dict[int, list[int]], steps: int, floor: float
) -> dict[int, list[int]]:
    texts = [prompts[i] + tokens for i, tokens in alive.items()]
    lengths = torch.tensor([len(text) for text in texts])
    width = int(lengths.max())
    ids = torch.tensor([text + [0] * (width - len(text)) for text in texts])
    state = lm.new_state(len(texts), width + steps)
    rows = lm.forward(ids, state, lengths)[torch.arange(len(texts)), lengths - 1]
    steady, new = torch.ones(len(texts), dtype=torch.bool), []
    for step in range(steps):
        top = rows.topk(2).values
        steady &= top[:, 0] - top[:, 1] >= floor
        new.append(rows.argmax(-1))
        if step + 1 < steps:
            rows = lm.forward(new[-1][:, None], state)[:, 0]
    added = torch.stack(new, 1).tolist()
    grown = [(i, old + more) for (i, old), more in zip(alive.items(), added, strict=True)]
    kept = zip(grown, steady.tolist(), strict=True)
    return {i: tokens for (i, tokens), ok in kept if ok and allowed(lm, tokens)}


def most_repeated(tokens: Sequence[int], size: int = 4) -> int:
    """How often the commonest run of `size` tokens occurs."""
    runs = Counter(tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1))
    return max(runs.values(), default=0)


def allowed(lm: LM, tokens: Sequence[int]) -> bool:
    """No special token, no 4-gram more than twice, no token more than a third of the time."""
    assert lm.tokenizer is not None, "goldens are text: the checkpoint has a tokenizer"
    if set(tokens) & set(lm.tokenizer.get_added_tokens_decoder()):
        return False
    commonest = Counter(tokens).most_common(1)[0][1]
    return most_repeated(tokens) <= 2 and commonest <= max(2, len(tokens) // 3)


def reads_as_code(prompt: str, text: str) -> bool:
    """Whether prompt and continuation, up to the last complete line, are a piece of Python."""
    lines = (prompt + text).splitlines()[:-1]
    while lines:
        try:
            ast.parse(textwrap.dedent("\n".join(lines)))
        except (SyntaxError, ValueError):
            opened = lines[-1].rstrip().endswith(":")
            lines = lines[:-1] if opened else []  # a block that the cut left without a body
            continue
        return len("\n".join(lines)) > len(prompt)  # else nothing of the continuation was judged
    return False
