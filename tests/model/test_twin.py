"""The torch model beside its NumPy twin, which was derived apart from it and has no caches.

Without quantisation all rows agree to 1e-4. A quantiser turns a last-bit difference into a step
now and then, and every layer above carries it on; so with quantisation each block is run on the
twin's own streams, and nearly all rows must agree.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from dslearn.config import Config
from dslearn.model import Model
from dslearn.model.engram_hash import EngramHash
from dslearn.model.weights import named_tensors
from dslearn.numerics import Numerics
from tests.support.models import EXACT, build, forced_blocks, prompt, twin
from tests.support.random_model import tiny_random_config

sys.path.insert(0, str(Path(__file__).parents[1] / "golden"))
from numpy_model import NumpyModel
from numpy_random import CONFIG, TOKEN_MAP, plain_tensors

PLAIN = tiny_random_config(quantization_config=None)
TOKENS = 40
SWITCHES = {
    "plain": {"activations": False, "caches": False},
    "activations": {"activations": True, "caches": False},
    "caches": {"activations": False, "caches": True},
    "both": {"activations": True, "caches": True},
    "both-240": {"activations": True, "caches": True, "fp8_max": 240},
    "both-224": {"activations": True, "caches": True, "fp8_max": 224},
}


def odd_pair(**switches):
    """The twin's own random model, with weights on a grid of 1/64, in both implementations."""
    cfg = Config.from_dict(
        {"max_position_embeddings": 256, "qk_rope_head_dim": 16, "hidden_act": "silu"} | CONFIG
    )
    tensors = plain_tensors(CONFIG, seed=3)
    hashing = EngramHash(cfg, torch.from_numpy(TOKEN_MAP), 2)
    model = Model(cfg, Numerics(**switches), hashing).requires_grad_(False)
    for name, parameter in named_tensors(model):
        parameter.copy_(torch.from_numpy(tensors[name]))
    other = NumpyModel(CONFIG, tensors, engram_token_map=TOKEN_MAP, engram_pad_id=2, **switches)
    return model, other


def pair(case: str, switches: dict):
    """Model, twin and a prompt."""
    if case == "odd":
        ids = np.random.default_rng(1).integers(0, 61, size=(1, TOKENS))
        return *odd_pair(**switches), torch.from_numpy(ids)
    return build(PLAIN, Numerics(**switches)), twin(PLAIN, **switches), prompt(PLAIN, TOKENS)


@pytest.mark.parametrize("case", ["tiny", "odd"])
def test_every_logit_agrees_where_nothing_is_quantised(case):
    model, other, ids = pair(case, SWITCHES["plain"])
    trace: dict = {}
    seen: dict = {}
    want = torch.from_numpy(other.forward(ids[0].numpy(), trace=seen))
    logits = model.forward(ids, model.new_state(1, TOKENS), trace=trace)[0]
    assert logits.std() > 0.5 and (logits - want).abs().max() < 1e-4
    for i, (mine, theirs) in enumerate(zip(trace["layers"], seen["layers"], strict=True)):
        same_choices(mine, theirs, i)


def same_choices(mine: dict, theirs: dict, layer: int) -> None:
    """Selections, routes and Engram rows are the same integers."""
    assert np.array_equal(mine["route_ids"][0].numpy(), theirs["route_ids"]), f"layer {layer}"
    assert np.allclose(mine["route_weights"][0].numpy(), theirs["route_weights"], atol=1e-5)
    if "topk" in theirs:
        assert np.array_equal(wide(mine["topk"], theirs["topk"]), theirs["topk"]), f"layer {layer}"
    if "engram_ids" in theirs:
        assert np.array_equal(mine["engram_ids"][0].numpy(), theirs["engram_ids"])
        assert np.allclose(mine["engram_gates"][0].numpy(), theirs["engram_gates"], atol=1e-5)


def wide(topk: torch.Tensor, like: np.ndarray) -> np.ndarray:
    """The model's selection [1, T, k] padded with -1 to the twin's width."""
    out = np.full_like(like, -1)
    out[:, : topk.shape[-1]] = topk[0].numpy()
    return out


@pytest.mark.parametrize("name", ["activations", "caches", "both", "both-240", "both-224"])
@pytest.mark.parametrize("case", ["tiny", "odd"])
def test_every_block_agrees_on_the_same_streams_where_much_is_quantised(case, name):
    model, other, ids = pair(case, SWITCHES[name])
    seen: dict = {}
    other.forward(ids[0].numpy(), trace=seen)
    good = []
    for mine, theirs in zip(forced_blocks(model, ids, seen["layers"]), seen["layers"], strict=True):
        gap = np.abs(mine["streams"].numpy() - theirs["streams"]).max((1, 2))
        good.append(gap < 1e-4 * np.abs(theirs["streams"]).max())
        good[-1] &= np.abs(mine["pre"].numpy() - theirs["pre"]).max(1) < 1e-4
        good[-1] &= (mine["route_ids"][0].numpy() == theirs["route_ids"]).all(1)
        if "topk" in theirs:
            good[-1] &= (wide(mine["topk"], theirs["topk"]) == theirs["topk"]).all(1)
    share = [rows.mean() for rows in good]
    # All but one row of 500 here; a flip in a shared entry may cost a layer half of its rows.
    assert min(share) > 0.5 and np.mean(share) > 0.9, f"rows that agree, by layer: {share}"


@pytest.mark.parametrize("name", ["activations", "caches", "both"])
def test_whole_quantised_models_agree_until_a_rounding_differs(name):
    agree = total = 0
    for seed in range(3):
        model = build(PLAIN, Numerics(**SWITCHES[name]), seed)
        other = twin(PLAIN, seed, **SWITCHES[name])
        ids = prompt(PLAIN, 10, seed)
        gap = np.abs(model.forward(ids)[0].numpy() - other.forward(ids[0].numpy())).max(1)
        assert gap.min() < 1e-4
        agree, total = agree + (gap < 1e-3).sum(), total + len(gap)
    assert agree > total / 2, f"only {agree} of {total} rows agree"


@pytest.mark.parametrize("name", ["activations", "caches", "both-240"])
def test_each_switch_does_something(name):
    ids = prompt(PLAIN, 20)
    plain = build(PLAIN).forward(ids)
    gap = (build(PLAIN, Numerics(**SWITCHES[name])).forward(ids) - plain).abs().max()
    assert gap > 0.05, "20 tokens of a random model do not notice the quantisers"


def test_prefill_then_steps_agree_with_the_twin_too():
    model, other, ids = build(PLAIN), twin(PLAIN, **SWITCHES["plain"]), prompt(PLAIN, 24, 9)
    want = torch.from_numpy(other.forward(ids[0].numpy()))
    state = model.new_state(1, 24)
    got = [model.forward(ids[:, :13], state)[0]]
    got += [model.forward(ids[:, p : p + 1], state)[0] for p in range(13, 24)]
    assert (torch.cat(got) - want).abs().max() < 1e-4
    assert model.numerics == EXACT
