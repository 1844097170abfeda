"""Exercises of notebook 04: the mistakes that readers make are caught, with a hint."""

from __future__ import annotations

import pytest

from dslearn.lessons import checks_04
from tests.support.solutions import NOTEBOOKS, load

SOLUTION_04 = NOTEBOOKS / "solutions" / "04_residual_streams.py"


def transposed(y: list, h: list, post: list, comb: list) -> list:
    """Sums over the second index of comb."""
    turned = [list(line) for line in zip(*comb, strict=True)]
    return load(SOLUTION_04).write(y, h, post, turned)


def one_round_more(logits: list, rounds: int, eps: float) -> list:
    return load(SOLUTION_04).sinkhorn(logits, rounds + 1, eps)


def eps_only_in_front(logits: list, rounds: int, eps: float) -> list:
    """eps joins the softmax and no division."""
    import torch

    c = torch.tensor(logits, dtype=torch.float64).softmax(-1) + eps
    for half in range(2 * rounds - 1):
        c = c / c.sum(-2 if half % 2 == 0 else -1, keepdim=True)
    return c.tolist()


def blind_to_images(history: list, factors: list, prime: int, pad: int) -> int:
    """Replaces an image by the pad, and still looks behind it."""
    return load(SOLUTION_04).row([pad if t < 0 else t for t in history], factors, prime, pad)


def in_int32(history: list, factors: list, prime: int, pad: int) -> int:
    """Products that wrap, as the compiler for the chip would leave them."""
    mixed = 0
    for back, factor in enumerate(factors):
        mixed ^= history[-1 - back] * factor
    return ((mixed + 2**31) % 2**32 - 2**31) % prime


@pytest.mark.parametrize(
    ("check", "wrong", "words"),
    [
        (checks_04.check_04_1, transposed, "sum over its first index"),
        (checks_04.check_04_1, lambda y, h, post, comb: h, "sum over its first index"),
        (checks_04.check_04_2, one_round_more, "sinkhorn([[0.0]], 1, 0.25) gives [[0.754717]]"),
        (checks_04.check_04_2, eps_only_in_front, "plus eps 1.25, divided by 1.25 + eps"),
        (checks_04.check_04_3, blind_to_images, "so is everything behind it"),
        (checks_04.check_04_3, in_int32, "joined by exclusive or, then modulo"),
    ],
)
def test_mistakes_with_streams_and_rows_are_caught(check, wrong, words):
    with pytest.raises(AssertionError) as caught:
        check(wrong)
    assert words in str(caught.value)
