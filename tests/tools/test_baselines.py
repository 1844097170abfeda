"""Baselines: the n-gram model against a dictionary version, sums to one, gzip's frame."""

from __future__ import annotations

import importlib
import math
import sys
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn.errors import UsageError

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
baselines = importlib.import_module("baselines")

KNOWN = [b"the cat sat on the mat\n", b"a cat\n", b"", b"\xff\x00the the"]
TEXTS = st.lists(st.binary(max_size=30), min_size=1, max_size=4)


def _padded(text: bytes, order: int) -> tuple[int, ...]:
    return (256,) * order + tuple(text) + (256,)


def _by_hand(known: list[bytes], text: bytes, order: int, smoothing: str) -> float:
    """Bits of `text` and its end, with counts in dictionaries and recursion over the order."""
    counts: list[Counter] = [Counter() for _ in range(order + 1)]
    for one in known:
        row = _padded(one, order)
        for at in range(order, len(row)):
            for n in range(order + 1):
                counts[n][row[at - n : at + 1]] += 1
    if smoothing == "kn":  # below the top order: how many different symbols stand in front
        for n in range(order - 1, -1, -1):
            counts[n] = Counter(gram[1:] for gram in counts[n + 1])

    def discount(n: int, count: int) -> float:
        c = [0, *(sum(v == k for v in counts[n].values()) for k in (1, 2, 3, 4))]
        y = c[1] / (c[1] + 2 * c[2]) if all(c[1:]) else math.inf
        found = [k - (k + 1) * y * c[k + 1] / (c[k] or 1) for k in (1, 2, 3)]
        return (found if min(found) > 0 else (0.5, 1, 1.5))[min(count, 3) - 1]

    def prob(gram: tuple[int, ...]) -> float:
        n = len(gram) - 1
        lower = prob(gram[1:]) if n else 1 / 257
        after = {g: v for g, v in counts[n].items() if g[:-1] == gram[:-1]}
        if not after:
            return lower
        total, own = sum(after.values()), after.get(gram, 0)
        if smoothing == "wb":
            return (own + len(after) * lower) / (total + len(after))
        mass = sum(discount(n, v) for v in after.values())
        return (own - (discount(n, own) if own else 0) + mass * lower) / total

    row = _padded(text, order)
    return -sum(math.log2(prob(row[at - order : at + 1])) for at in range(order, len(row)))


@pytest.mark.parametrize("smoothing", baselines.SMOOTHINGS)
@pytest.mark.parametrize("order", [0, 1, 2, 5, 6])
def test_equals_a_dictionary_model(order, smoothing):
    text = b"the cat on a hat\xfe"
    bits = baselines.ngram_bits(KNOWN, [text], order, smoothing)
    assert bits * len(text) == pytest.approx(_by_hand(KNOWN, text, order, smoothing), rel=1e-12)


@pytest.mark.parametrize("smoothing", baselines.SMOOTHINGS)
@settings(max_examples=20, deadline=None)
@given(TEXTS, st.binary(max_size=8), st.integers(0, 6))
def test_probabilities_sum_to_one(smoothing, known, seen, order):
    levels = baselines.train(
        baselines.grams(*baselines.symbols(known, order), order), order, smoothing
    )
    for gram in baselines.grams(*baselines.symbols([seen, known[0]], order), order):
        every = (gram >> baselines.BITS << baselines.BITS) + np.arange(257, dtype=np.uint64)
        p = baselines.probability(levels, every)
        assert p.sum() == pytest.approx(1, abs=1e-9)
        assert (p > 0).all()


def test_discounts_are_those_of_chen_and_goodman():
    counts = np.repeat([1, 2, 3, 4, 9], [10, 4, 2, 1, 5])
    y = 10 / 18
    expected = [0, 1 - 2 * y * 4 / 10, 2 - 3 * y * 2 / 4, 3 - 4 * y * 1 / 2]
    np.testing.assert_allclose(baselines.discounts(counts), expected, rtol=1e-12)


def test_gzip_is_deflate_and_eighteen_bytes():
    texts = [b"abc" * 100, b"x"]

    def raw(data: bytes) -> int:
        engine = zlib.compressobj(9, zlib.DEFLATED, -15)
        return len(engine.compress(data) + engine.flush()) + 18

    alone, together = baselines.gzip_bits(texts)
    assert alone == 8 * sum(map(raw, texts)) / 301
    assert together == 8 * raw(b"".join(texts)) / 301


@pytest.mark.parametrize(("order", "smoothing"), [(7, "kn"), (-1, "wb"), (2, "gt")])
def test_refused(order, smoothing):
    with pytest.raises(UsageError, match=f"smoothing '{smoothing}', order {order}: allowed are"):
        baselines.train(np.zeros(1, np.uint64), order, smoothing)
