"""Attention through the operations: each layer role, chunk and boundary against the torch path.

The same layer is given the same tensors on both paths. Shapes: B batch, T tokens; window 8.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from dslearn import backend
from dslearn.model import chip_attention
from dslearn.model.plan import Found
from dslearn.numerics import Numerics
from tests.support.models import build, differences, prompt, small_config
from tests.support.on_sim import on_sim

RAW = small_config()
ROOM = 40
ROLES = ("window", "pairs, owns", "pairs, borrows", "singles, publishes", "singles, filters")
KEPT = ("ring", "entries", "index_keys", "open_u", "open_g")
IDS = torch.cat([prompt(RAW, 32, seed) for seed in (1, 2, 3)])
BOUNDARIES = [(0, 7), (0, 9), (7, 1), (8, 1), (9, 7), (16, 1), (17, 3)]
PARITIES = [(start, tokens) for start in (10, 11) for tokens in (1, 2)]
CASES = [("fp32", *case) for case in BOUNDARIES + PARITIES + [(0, 25)]]
CASES += [("bf16", 9, 7), ("bf16", 16, 1)]


@dataclass
class Heard:
    """What one attention layer was given, before it wrote anything, and what it gave."""

    given: tuple[Any, ...]
    pools: Any
    out: torch.Tensor
    found: Found


@pytest.fixture(scope="module")
def models():
    """Random models, made once per arithmetic; inputs of linears are not quantised."""
    return {kind: build(RAW, Numerics(kind, activations=False)) for kind in ("fp32", "bf16")}


def listen(model, before: int, tokens: int, batch: int = 1) -> list[Heard]:
    """Every layer's attention in a call of `tokens` after `before`, on the torch path."""
    state, heard, hooks = model.new_state(batch, ROOM), [], []
    if before:
        model.forward(IDS[:batch, :before], state)

    def entered(_, args):
        heard.append((args, deepcopy(args[2])))

    def left(_, args, result):
        args, pools = heard.pop()
        heard.append(Heard((*args[:2], pools, *args[3:]), args[2], *result))

    for layer in model.layers:
        hooks.append(layer.attn.register_forward_pre_hook(entered))
        hooks.append(layer.attn.register_forward_hook(left))
    ids = IDS[:batch, before : before + tokens]
    # A mask of no images keeps a single token out of the NumPy path, which calls no module.
    model.forward(ids, state, image_mask=torch.zeros_like(ids, dtype=torch.bool))
    for hook in hooks:
        hook.remove()
    return heard


def in_blocks(given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Candidates as the kernels have them: a byte per block."""
    *rest, candidates = given
    size = RAW["candidate_block_size"]
    return *rest, None if candidates is None else candidates[..., ::size].to(torch.uint8)


def check_layer(layer, heard: Heard, tolerance: float) -> dict[str, int]:
    """The layer on sim gives what it gave; -> the kernels it called.

    Norms of the two paths differ in the last bit, so a value next to a boundary of a format may
    round the other way: one in a hundred bytes is let pass.
    """
    given = in_blocks(deepcopy(heard.given))
    (out, found), called = on_sim(layer, *given)
    scale = float(heard.out.abs().max())
    assert float((out - heard.out).abs().max()) <= tolerance * scale and scale > 0
    for name in KEPT:
        mine, want = getattr(given[2], name), getattr(heard.pools, name)
        assert (mine is None) == (want is None), name
        if want is not None:
            same = torch.isclose(mine.float(), want.float(), rtol=1e-3, atol=1e-3)
            assert same.float().mean() > 0.99, f"{name}: {int((~same).sum())} values differ"
    if heard.found.chosen is not None:
        assert torch.equal(found.chosen.long(), heard.found.chosen.long())
    assert (found.candidates is None) == (heard.found.candidates is None)
    if found.candidates is not None:
        size, count = RAW["candidate_block_size"], heard.found.candidates.shape[-1]
        mask = found.candidates.bool().repeat_interleave(size, -1)[..., :count]
        visible = torch.arange(count) < given[1].visible.unsqueeze(-1)
        assert torch.equal(mask & visible, heard.found.candidates & visible)
    return called


@pytest.mark.parametrize(("kind", "before", "tokens"), CASES)
def test_every_role_is_the_torch_path(models, kind, before, tokens):
    heard = listen(models[kind], before, tokens)
    for layer, role, one in zip(models[kind].layers, ROLES, heard, strict=True):
        called = check_layer(layer.attn, one, {"fp32": 1e-2, "bf16": 3e-2}[kind])
        assert called["rope"] >= 2 and called["sparse_attn"] == 1, role
        assert called["kv_store"] == (3 if "own" in role or "publishes" in role else 1), role
        assert called.get("compress_pool", 0) == ("own" in role or "publishes" in role), role


def test_what_binds_is_scored_and_selected_by_kernels(models):
    heard = listen(models["fp32"], 20, 1)
    called = [
        check_layer(layer.attn, one, 1e-2)
        for layer, one in zip(models["fp32"].layers, heard, strict=True)
    ]
    scored = [bool(layer.get("index_score")) for layer in called]
    assert scored == [False, True, False, True, True]
    assert [layer.get("index_topk", 0) for layer in called] == [0, 1, 0, 1, 1]
    assert [layer.get("candidate_blocks", 0) for layer in called] == [0, 0, 0, 1, 0]


def test_a_batch_is_one_attention_kernel_per_sequence(models):
    heard = listen(models["fp32"], 11, 2, batch=3)
    for layer, one in zip(models["fp32"].layers, heard, strict=True):
        assert check_layer(layer.attn, one, 1e-2)["sparse_attn"] == 3


@pytest.mark.parametrize("before", [10, 11])
def test_chunks_longer_than_a_kernel_takes_are_cut(models, monkeypatch, before):
    """Pairs across a cut, and a last piece of one token."""
    monkeypatch.setattr(chip_attention, "PAIRED", 4)
    monkeypatch.setattr(chip_attention, "QUERIES", 3)
    heard = listen(models["fp32"], before, 9)
    calls = [
        check_layer(models["fp32"].layers[i].attn, heard[i], 1e-2)
        for i in (1, 3)  # the kv sources
    ]
    assert [(one["sparse_attn"], one["compress_pool"]) for one in calls] == [(3, 3), (3, 1)]


@pytest.mark.parametrize("sizes", [[1] * 3, [3, 3], [7]])
def test_chunks_on_sim_say_what_they_say_on_the_cpu(models, sizes):
    def run():
        state, parts, at = models["fp32"].new_state(1, ROOM), [], 0
        for size in (11, *sizes):
            parts.append(models["fp32"].forward(IDS[:1, at : at + size], state))
            at += size
        return torch.cat(parts, 1)

    logits, _ = on_sim(run)
    want = run()
    assert float((logits - want).abs().amax(-1).median()) < 1e-3 * float(want.std())


def test_padding_a_batch_from_3_to_8_changes_no_byte_of_a_pool(models):
    model, lengths = models["fp32"], [5, 12, 9]
    small, large = model.new_state(3, ROOM), model.new_state(8, ROOM)
    wide = torch.cat((IDS[:, :12], torch.full((5, 12), 9)))
    with backend.use("sim"):
        model.forward(IDS[:, :12], small, lengths)
        model.forward(wide, large, lengths + [0] * 5)
        model.forward(IDS[:, 12:13], small)
        model.forward(torch.cat((IDS[:, 12:13], torch.full((5, 1), 9))), large, [1] * 3 + [0] * 5)
    for mine, want in zip(large.layers, small.layers, strict=True):
        for name in ("ring", "entries", "index_keys"):
            if getattr(want, name) is not None:
                data = getattr(mine, name).data
                assert torch.equal(data[:3], getattr(want, name).data), name
                assert not data[3:].any(), f"{name}: an empty row was written"
    for row in range(3, 8):
        assert not differences(large, model.new_state(1, ROOM), row=row)


@pytest.mark.parametrize(
    ("begin", "block", "kept"),
    [(7, [4], 1), (8, [4], 3), (9, [1, 2], 1), (14, [1, 2], 2), (7, [9], 3), (8, [1], 0)],
)
def test_rollback_leaves_what_the_kept_tokens_alone_leave(models, begin, block, kept):
    """The same call with fewer real tokens: equal bytes, whatever the products are."""
    model, state = models["fp32"], models["fp32"].new_state(1, ROOM)
    with backend.use("sim"):
        model.forward(IDS[:1, :begin], state)
        tried, wanted, at = deepcopy(state), deepcopy(state), begin
        tried.mark()
        for size in block:
            ids = IDS[:1, at : at + size]
            model.forward(ids, tried)
            model.forward(ids, wanted, [min(max(begin + kept - at, 0), size)])
            at += size
        tried.rollback(begin + kept)
    bad = differences(tried, wanted)
    assert not bad, bad
