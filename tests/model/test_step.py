"""The decode step in NumPy is the general forward pass: logits, caches, traces, undoing.

The general pass is the same model with an `Arith` of another class, which the step refuses. Shapes:
one sequence, one token per call.
"""

from __future__ import annotations

import warnings
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch

from dslearn.errors import UsageError
from dslearn.model import Model, State
from dslearn.model.arith import Arith
from dslearn.model.step.decode import possible
from dslearn.numerics import Numerics
from tests.support.models import EXACT, INVARIANT, build, differences, prompt, small_config

RAW = small_config()
TOKENS = prompt(RAW, 30, 8)[0].tolist()
ROOM = 48
ONE = torch.tensor([1])
# Sizes off the powers of two; one expert, two streams, fewer candidates (4) than top-k (6).
ODD = small_config(
    hidden_size=48,
    moe_intermediate_size=96,
    num_attention_heads=6,
    head_dim=64,
    qk_rope_head_dim=6,
    num_experts_per_tok=1,
    hc_mult=2,
    sliding_window=5,
    index_topk=6,
    candidate_topk_blocks=2,
)


class Other(Arith):
    """The same arithmetic, by another name: no step."""


def general(model: Model) -> Model:
    """The same weights without the step."""
    twin = deepcopy(model)
    for module in twin.modules():
        if hasattr(module, "arith"):
            module.arith = Other(model.numerics, model.arith.block)
    return twin


def run(model: Model, tokens: list[int], chunks: list[int], trace: dict | None = None):
    """Logits of every token, in chunks, and the state after them."""
    state, parts, at = model.new_state(1, ROOM), [], 0
    for chunk in chunks:
        parts.append(model.forward(torch.tensor([tokens[at : at + chunk]]), state, trace=trace))
        at += chunk
    return torch.cat(parts, 1), state


def gap(a: torch.Tensor, b: torch.Tensor) -> float:
    return (a - b).abs().max().item()


@pytest.mark.parametrize("raw", [RAW, ODD], ids=["small", "odd"])
@pytest.mark.parametrize("chunks", [[1] * 30, [9] + [1] * 21, [1, 3, 1, 1, 8] + [1] * 16])
def test_steps_agree_with_the_general_pass(raw, chunks):
    model = build(raw, EXACT)
    got, state = run(model, TOKENS, chunks)
    want, other = run(general(model), TOKENS, chunks)
    assert gap(got, want) < 1e-4 and want.abs().max() > 0.1
    assert not differences(state, other, tolerance=1e-4)


@pytest.mark.parametrize("numerics", [Numerics(), Numerics(activations=True, fp8_max=240)])
def test_steps_write_the_general_records_while_the_inputs_agree(numerics):
    """Keys of layer 0 have seen no quantised cache yet: equal but for a rare rounding boundary."""
    model = build(RAW, numerics)
    _, state = run(model, TOKENS, [1] * 30)
    _, other = run(general(model), TOKENS, [1] * 30)
    mine, theirs = (s.layers[0].ring.data.numpy()[:, :-1] for s in (state, other))
    assert (mine == theirs).mean() > 0.99 and mine.any()
    counts = [c.index_keys.data.count_nonzero() for c in other.layers if c.index_keys]
    assert len(counts) == 2 and all(counts), "index keys were stored"


def test_the_decoded_keys_follow_the_records():
    """Steps, chunks and rollbacks in any order: what a step reads is what the bytes say."""
    model = build(RAW, Numerics(activations=False))
    state = model.new_state(1, ROOM)
    for chunk, back in ((1, 0), (3, 0), (1, 0), (9, 4), (1, 0), (1, 1), (1, 0), (2, 0), (1, 0)):
        if back:
            state.mark()
        model.forward(torch.tensor([TOKENS[state.position : state.position + chunk]]), state)
        if back:
            state.rollback(state.position - back)
        for cache in state.layers:
            assert torch.equal(cache.ring.keys, cache.ring.codec.unpack(cache.ring.data))
    assert state.position == 15


@pytest.mark.parametrize("begin", [0, 1, 7, 8, 15])
def test_every_step_of_a_block_can_be_undone_to_the_byte(begin):
    model = build(RAW, Numerics(activations=False))
    _, state = run(model, TOKENS, [1] * begin) if begin else (None, model.new_state(1, ROOM))
    for kept in range(4):
        block = deepcopy(state)
        block.mark()
        for token in TOKENS[begin : begin + kept] + [3, 5, 7][kept:]:
            model.forward(torch.tensor([[token]]), block)
        block.rollback(begin + kept)
        want = deepcopy(state)
        for token in TOKENS[begin : begin + kept]:
            model.forward(torch.tensor([[token]]), want)
        assert not differences(block, want), f"{kept} of 3 steps kept from {begin}"


def test_a_trace_has_the_general_entries():
    model = build(RAW, EXACT)
    mine, theirs = {}, {}
    run(model, TOKENS, [12, 1], mine)
    run(general(model), TOKENS, [12, 1], theirs)
    assert len(mine["layers"]) == len(theirs["layers"]) == 5
    for layer, (got, want) in enumerate(zip(mine["layers"], theirs["layers"], strict=True)):
        assert got.keys() == want.keys()
        for name, value in want.items():
            where = f"layer {layer}, {name}"
            if value is None:
                assert got[name] is None, where
            else:
                assert got[name].shape == value.shape and got[name].dtype == value.dtype, where
                assert gap(got[name].float(), value.float()) < 1e-4, where


def test_nan_passes_without_a_warning():
    model = build(RAW, Numerics(), change={"embed.weight": torch.full((64, 32), torch.nan)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        logits = model.forward(torch.tensor([[3]]), model.new_state(1, ROOM))
    assert logits.isnan().all()


def test_ids_are_checked_before_a_step():
    model = build(RAW)
    state = model.new_state(1, 1)
    with pytest.raises(UsageError, match=r"token ids 64..64"):
        model.forward(torch.tensor([[64]]), state)
    assert model.forward(torch.tensor([[63]]), state).shape == (1, 1, 64) and state.position == 1


class TestWhenACallIsAStep:
    """Each reason against it, beside the call that has none."""

    ids = torch.tensor([[3]])

    def test_one_token(self):
        model = build(RAW)
        assert possible(model, self.ids, ONE)
        assert not possible(model, torch.tensor([[3, 4]]), ONE)
        assert not possible(model, torch.tensor([[3], [4]]), torch.tensor([1, 1]))
        assert not possible(model, self.ids, torch.tensor([0])), "a row that is all padding"

    @pytest.mark.parametrize("numerics", [replace(EXACT, arithmetic="bf16"), INVARIANT])
    def test_arithmetic(self, numerics):
        assert not possible(build(RAW, numerics), self.ids, ONE)
        fp32 = replace(numerics, arithmetic="fp32", row_invariant=False)
        assert possible(build(RAW, fp32), self.ids, ONE)

    def test_gradients(self):
        model = build(RAW)
        model.head.weight.requires_grad_(True)
        assert not possible(model, self.ids, ONE)
        state = model.new_state(1, ROOM)
        model.forward(self.ids, state).sum().backward()
        assert model.head.weight.grad is not None, "autograd saw the whole pass"
        with torch.no_grad():
            assert possible(model, self.ids, ONE)
            assert model.forward(self.ids, state).isfinite().all()

    def test_other_products_dtypes_and_tensors(self):
        model = build(RAW)
        assert not possible(general(model), self.ids, ONE)
        assert not possible(deepcopy(model).to(torch.bfloat16), self.ids, ONE)
        assert not possible(deepcopy(model).to("meta"), self.ids, ONE)
        strange = self.ids.as_subclass(type("Strange", (torch.Tensor,), {}))
        assert not possible(model, strange, ONE)

    def test_the_compiler(self, monkeypatch):
        model = build(RAW)
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        assert not possible(model, self.ids, ONE)

    def test_images(self):
        """An image slot reads other biases and is dead for Engram: the general pass knows."""
        model = build(RAW)
        embeds = torch.full((1, 1, 32), 0.5)
        options = {"embeds": embeds, "image_mask": torch.tensor([[True]])}
        trace: dict = {}
        model.forward(self.ids, model.new_state(1, ROOM), trace=trace, **options)
        assert (trace["layers"][1]["engram_gates"] == 0).all()
        model.forward(self.ids, model.new_state(1, ROOM), trace=trace)
        assert (trace["layers"][1]["engram_gates"] > 0).all()


def test_a_padded_row_leaves_the_state_alone():
    model = build(RAW)
    state: State = model.new_state(1, ROOM)
    model.forward(torch.tensor([[3, 4]]), state)
    before = deepcopy(state)
    model.forward(torch.tensor([[5]]), state, lengths=[0])
    assert not differences(state, before) and np.isfinite(state.layers[0].ring.keys.numpy()).all()
