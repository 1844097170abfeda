"""Explanations: the trace's own numbers, at the positions that they are about."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest
import torch

import dslearn
from dslearn import Numerics
from dslearn.engine import load
from dslearn.engine.explain import explain
from dslearn.errors import UsageError
from tests.engine.engine_model import save_random_lm

WINDOW, TOPK = 8, 4  # of the random model
LENGTHS = [1, 2, 3, WINDOW, WINDOW + 1, 40, 41]
NO_ENGRAM = {"engram_layer_ids": [], "engram_num_embeddings": []}


@pytest.fixture(scope="module")
def lm(random_directory):
    """Row-invariant: a step has the bits that it has in one long call."""
    return load(random_directory, Numerics(row_invariant=True))


def ids_of(length: int) -> list[int]:
    return [0, *(3 + np.random.default_rng(length).integers(0, 1900, length - 1)).tolist()]


def watched(lm, ids: list[int]) -> tuple[torch.Tensor, list[dict[str, Any]]]:
    """The same step asked of the model itself: all tokens in one call, without a state."""
    trace: dict[str, Any] = {"shares": True}
    logits = lm.forward([ids], trace=trace)
    return logits[0, -1], trace["layers"]


@pytest.mark.parametrize("length", LENGTHS)
def test_every_number_is_the_trace_s(lm, length):
    ids = ids_of(length)
    e, (logits, layers) = explain(lm, ids), watched(lm, ids)
    assert (e.position, e.decoded, e.ids) == (length - 1, int(logits.argmax()), tuple(ids))
    for layer, seen in zip(e.layers, layers, strict=True):
        shares = seen["shares"][0, -1]  # [H, W + K + 1]
        near = torch.tensor([key.shares for key in layer.window]).T
        hidden = WINDOW - len(layer.window)
        torch.testing.assert_close(near, shares[:, hidden:WINDOW], atol=1e-6, rtol=1e-5)
        assert not shares[:, :hidden].any(), "slots before the start hold nothing"
        torch.testing.assert_close(torch.tensor(layer.sink), shares[:, -1], atol=1e-6, rtol=1e-5)
        chosen = [] if seen["topk"] is None else seen["topk"][0, -1].tolist()
        assert [key.entry for key in layer.selected] == [j for j in chosen if j >= 0]
        for key in layer.selected:
            due = shares[:, WINDOW + chosen.index(key.entry)]
            torch.testing.assert_close(torch.tensor(key.shares), due, atol=1e-6, rtol=1e-5)
        assert [expert for expert, _ in layer.experts] == seen["route_ids"][0, -1].tolist()
        weights = torch.tensor([weight for _, weight in layer.experts])
        torch.testing.assert_close(weights, seen["route_weights"][0, -1], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("length", LENGTHS)
def test_shares_sum_to_one_for_every_head_and_in_the_mean(lm, length):
    for layer in explain(lm, ids_of(length)).layers:
        keys = [key.shares for key in (*layer.window, *layer.selected)]
        assert np.allclose(np.sum([*keys, layer.sink], axis=0), 1, atol=1e-6)
        assert sum(layer.parts) == pytest.approx(1, abs=1e-6)
        assert layer.parts[0] == pytest.approx(sum(key.share for key in layer.window))


@pytest.mark.parametrize("length", LENGTHS)
def test_keys_name_the_tokens_that_they_hold(lm, length):
    cfg = lm.config
    for layer in explain(lm, ids_of(length)).layers:
        near = [(key.first, key.last, key.entry) for key in layer.window]
        assert near == [(at, at, None) for at in range(max(0, length - WINDOW), length)]
        ratio = cfg.ratios[layer.index]
        assert layer.visible == (length // ratio if ratio else 0)
        assert len(layer.selected) <= min(TOPK, layer.visible)
        for key in layer.selected:
            assert (key.first, key.last) == (ratio * key.entry, ratio * (key.entry + 1) - 1)
            assert key.last < length
    # Enough entries for a whole selection, except inside candidate blocks.
    full = explain(lm, ids_of(length)).layers[4]
    assert len(full.selected) == min(TOPK, length)


def test_layers_say_their_role_and_sources(lm):
    found = [(la.role, la.entries_of, la.chosen_by) for la in explain(lm, ids_of(40)).layers]
    assert found == [
        ("local", None, None),
        ("full", 1, 1),
        ("reuse", 1, 1),
        ("full", 3, 3),
        ("full+candidate", 4, 4),
        ("reuse", 4, 4),
        ("reindex", 4, 6),
        ("reuse", 4, 6),
    ]


@pytest.mark.parametrize("length", [1, 2, 40])
def test_lookups_are_ngrams_of_the_last_tokens(lm, length):
    ids = ids_of(length)
    e, (_, layers) = explain(lm, ids), watched(lm, ids)
    for layer, seen in zip(e.layers, layers, strict=True):
        if layer.index not in (1, 5):
            assert layer.lookups == layer.gates == () and seen["engram_ids"] is None
            continue
        assert [length - look.first for look in layer.lookups] == [2, 3, 4], "n-gram sizes"
        rows = [row for look in layer.lookups for row in look.rows]
        assert rows == seen["engram_ids"][0, -1].tolist(), "two hash heads, size by size"
        gates = torch.tensor(layer.gates)
        torch.testing.assert_close(gates, seen["engram_gates"][0, -1], atol=1e-6, rtol=1e-5)


def test_a_row_belongs_to_its_ngram_alone(lm):
    """Another token three places back changes the 4-grams' rows and no other."""
    ids = ids_of(12)
    other = [*ids[:-4], ids[-4] + 7, *ids[-3:]]
    for a, b in zip(explain(lm, ids).layers, explain(lm, other).layers, strict=True):
        differ = [x.rows != y.rows for x, y in zip(a.lookups, b.lookups, strict=True)]
        assert differ in ([], [False, False, True])


def test_a_later_step_is_the_first_of_the_longer_prompt(lm):
    ids = ids_of(10)
    new = list(lm.tokens(ids, 4))
    later, longer = explain(lm, ids, 3), explain(lm, [*ids, *new[:3]])
    assert later == longer and later.decoded == new[3]


def test_texts_are_as_python_writes_them(lm):
    half = next(i for i in range(2048) if "\ufffd" in lm.tokenizer.decode([i]))
    newline = lm.encode("\n")[1]
    e = explain(lm, [0, newline, half, 1])
    assert e.texts == ("<begin>", repr("\n"), lm.tokenizer.id_to_token(half), "<end>")


def test_without_tokenizer_engram_or_long_range(tmp_path):
    none = {"compress_ratios": [0] * 8, "kv_source_layer_ids": [], "index_source_layer_ids": []}
    plain = NO_ENGRAM | none | {"candidate_source_layer_id": None}
    lm = load(save_random_lm(tmp_path / "plain", tokenizer=False, **plain))
    e = explain(lm, ids_of(20), 1)
    assert e.texts[1] == f"token {e.ids[1]}" and len(e.texts) == 21
    for layer in e.layers:
        assert (layer.selected, layer.lookups, layer.gates, layer.visible) == ((), (), (), 0)
        assert layer.parts[1] == 0 and sum(layer.parts) == pytest.approx(1, abs=1e-6)


def test_tiny_remembers_a_name_from_beyond_its_window():
    """Layer 5 reads earlier `MmapClosedByIntContext` to go on after `Mmap`."""
    from dslearn.engine import golden

    lm = dslearn.load("tiny")
    long = next(prompt for prompt in golden.read()[1] if prompt.name == "long")
    e = explain(lm, long.prompt_ids, 8)
    assert (e.texts[-1], e.decoded_text, e.decoded) == ("'map'", "'C'", long.tokens[8])
    last = e.layers[5]
    far = [key for key in last.selected if key.first < last.window[0].first and key.share > 0.1]
    assert sum(key.share for key in far) > 0.4
    assert {e.texts[key.first] for key in far} == {"'C'"}, "the token that came next, each time"


@pytest.mark.parametrize(
    ("ids", "step", "words"),
    [
        ([], 0, "give at least one token id"),
        ([0, 5], -1, "step -1 after 2 tokens: a step is 0 or more"),
        ([0, 5], 255, "step 255 after 2 tokens: .* knows 256 positions"),
        ([5] * 257, 0, "after 257 tokens"),
        ([0, 2048], 0, "token ids"),
    ],
)
def test_refusals(lm, ids, step, words):
    with pytest.raises(UsageError, match=words):
        explain(lm, ids, step)


def test_a_step_past_the_end_token_is_refused(lm, monkeypatch):
    monkeypatch.setattr(lm, "tokens", lambda ids, count: iter([7, 8]))
    with pytest.raises(UsageError, match="step 3: the text ends after 2 new tokens"):
        explain(lm, [0, 5], 3)


def test_an_explanation_cannot_be_changed(lm):
    e = explain(lm, [0])
    with pytest.raises(FrozenInstanceError):
        e.decoded = 3
