"""The text that notebooks measure on: unseen, plain, and its bits computed as defined."""

from __future__ import annotations

import math

import pytest
import torch

from dslearn.engine import golden
from dslearn.lessons.held_out import TEXT, bits_per_byte


class Uniform:
    """Every token of a vocabulary of 256 is as likely as any other."""

    def encode(self, text: str) -> list[int]:
        return [0, *text.encode()]

    def forward(self, ids: list[list[int]]) -> torch.Tensor:
        return torch.zeros(1, len(ids[0]), 256)


class Certain(Uniform):
    """Knows that an "a" is followed by an "a", and nothing else."""

    def forward(self, ids: list[list[int]]) -> torch.Tensor:
        logits = super().forward(ids)
        logits[0, torch.tensor(ids[0]) == ord("a"), ord("a")] = 40.0
        return logits


def test_a_uniform_model_needs_eight_bits():
    assert bits_per_byte(Uniform()) == pytest.approx(8)
    assert bits_per_byte(Certain(), "aaaa") == pytest.approx(8 / 4, abs=1e-6)


def test_every_byte_counts_once_and_characters_are_bytes():
    class TwoBytes(Uniform):
        def encode(self, text: str) -> list[int]:
            return [0, 5]

    assert bits_per_byte(TwoBytes(), "é") == pytest.approx(math.log2(256) / 2)


def test_the_text_is_code_that_no_golden_prompt_holds():
    compile(TEXT, "text", "exec")
    assert TEXT.isascii() and 800 < len(TEXT) < 1200
    assert not any(g.prompt.strip() in TEXT for g in golden.read()[1])
