"""Images as embeddings: their own router bias, no Engram, nothing of their token ids."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from dslearn.errors import UsageError
from dslearn.numerics import Numerics
from tests.support.models import EXACT, INVARIANT, build, differences, prompt, twin, weights
from tests.support.random_model import tiny_random_config

RAW = tiny_random_config(quantization_config=None)
TOKENS = 22
IDS = prompt(RAW, TOKENS, 5)
IMAGE = torch.zeros(1, TOKENS, dtype=torch.bool)
IMAGE[0, [0, 6, 7, 8, 15]] = True
EMBEDS = torch.from_numpy(np.random.default_rng(2).standard_normal((1, TOKENS, 64))).float()
PICTURE = {"embeds": EMBEDS, "image_mask": IMAGE}


@pytest.fixture(scope="module")
def model():
    return build(RAW)


def traced(model, **options):
    trace: dict = {}
    logits = model.forward(IDS, trace=trace, **options)
    return logits, trace["layers"]


def test_logits_routes_and_gates_are_the_twin_s(model):
    seen: dict = {}
    other = twin(RAW, activations=False, caches=False)
    want = other.forward(IDS[0].numpy(), IMAGE[0].numpy(), EMBEDS[0].numpy(), seen)
    logits, layers = traced(model, **PICTURE)
    assert np.abs(logits[0].numpy() - want).max() < 1e-4
    for mine, theirs in zip(layers, seen["layers"], strict=True):
        assert np.array_equal(mine["route_ids"][0].numpy(), theirs["route_ids"])
    for layer in RAW["engram_layer_ids"]:
        ids, gates = (layers[layer][name][0].numpy() for name in ("engram_ids", "engram_gates"))
        assert np.array_equal(ids, seen["layers"][layer]["engram_ids"])
        assert np.allclose(gates, seen["layers"][layer]["engram_gates"], atol=1e-6)


def test_image_positions_are_dead_for_engram(model):
    _, layers = traced(model, **PICTURE)
    gates = layers[1]["engram_gates"]
    assert (gates[IMAGE] == 0).all() and (gates[~IMAGE] > 0).all()
    other = torch.where(IMAGE, (IDS + 31) % 100, IDS)
    trace: dict = {}
    model.forward(other, trace=trace, **PICTURE)
    assert torch.equal(trace["layers"][1]["engram_ids"], layers[1]["engram_ids"])


def test_the_ids_behind_an_image_and_the_embeds_behind_text_are_not_read(model):
    logits, _ = traced(model, **PICTURE)
    other = torch.where(IMAGE, (IDS + 31) % 100, IDS)
    noise = torch.where(IMAGE.unsqueeze(-1), EMBEDS, torch.nan)
    assert torch.equal(model.forward(other, embeds=noise, image_mask=IMAGE), logits)


def test_images_are_routed_by_their_own_bias_and_weighed_without_it(model):
    bias = {
        name: torch.full_like(value, -9.0).index_fill_(0, torch.tensor([2, 5]), 9.0)
        for name, value in weights(RAW).items()
        if name.endswith("gate.bias_vl")
    }
    assert len(bias) == RAW["num_hidden_layers"]
    _, layers = traced(build(RAW, change=bias), **PICTURE)
    for seen in layers:
        routes, shares = seen["route_ids"][IMAGE], seen["route_weights"][IMAGE]
        assert (routes.sort(-1).values == torch.tensor([2, 5])).all()
        assert torch.allclose(shares.sum(-1), torch.tensor(1.5)) and (shares > 0).all()
    assert not (layers[0]["route_ids"][~IMAGE].sort(-1).values == torch.tensor([2, 5])).all()
    swapped = {name: value + 1.0 for name, value in bias.items()}  # the same order
    again = build(RAW, change=swapped).forward(IDS, **PICTURE)
    assert torch.equal(again, build(RAW, change=bias).forward(IDS, **PICTURE))


def test_a_mask_that_is_false_everywhere_is_no_mask(model):
    nobody = torch.zeros_like(IMAGE)
    plain = model.forward(IDS)
    assert torch.equal(model.forward(IDS, embeds=EMBEDS, image_mask=nobody), plain)
    masked = model.forward(IDS, image_mask=IMAGE)
    assert not torch.allclose(masked, plain, atol=1e-2), "dead for Engram without embeds too"


@pytest.mark.parametrize("cuts", [[3, 7, 8, 16], list(range(1, TOKENS)), [8]])
def test_images_may_lie_across_chunks_and_be_rolled_back(cuts):
    model = build(RAW, INVARIANT)
    whole = model.new_state(1, TOKENS)
    want = model.forward(IDS, whole, **PICTURE)
    state = model.new_state(1, TOKENS)
    for a, b in pairwise([0, *cuts, TOKENS]):
        part = {"embeds": EMBEDS[:, a:b], "image_mask": IMAGE[:, a:b]}
        if a in (7, 8):  # a wrong draft at the end of an image must leave no trace in the history
            state.mark()
            model.forward(IDS[:, a : a + 3], state)
            state.rollback(a)
            state.commit()
        assert torch.equal(model.forward(IDS[:, a:b], state, **part), want[:, a:b]), f"{a}..{b - 1}"
    assert not differences(state, whole)


def test_padding_may_hold_images(model):
    ids = IDS.expand(2, -1)
    mask = torch.cat((IMAGE, torch.arange(TOKENS)[None] >= 9))
    logits = model.forward(
        ids, model.new_state(2, TOKENS), [TOKENS, 9], embeds=EMBEDS.expand(2, -1, -1),
        image_mask=mask,
    )  # fmt: skip
    assert torch.allclose(logits[1, :9], model.forward(IDS[:, :9])[0], atol=1e-4)
    assert torch.allclose(logits[0], model.forward(IDS, **PICTURE)[0], atol=1e-4)


def test_shapes_and_types_are_checked(model):
    wrong = [
        ({"embeds": EMBEDS}, "needs image_mask"),
        ({"embeds": EMBEDS[:, :3], "image_mask": IMAGE}, "embeds of shape"),
        ({"embeds": EMBEDS[..., :32], "image_mask": IMAGE}, "embeds of shape"),
        ({"image_mask": IMAGE[:, :3]}, "image_mask of"),
        ({"image_mask": IMAGE.long()}, "image_mask of"),
    ]
    for options, message in wrong:
        with pytest.raises(UsageError, match=message):
            model.forward(IDS, **options)
    assert model.numerics == EXACT != Numerics()
