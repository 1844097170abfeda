"""The model on simulated kernels: which are called, and that the numbers stay the model's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dslearn import Numerics, ops
from dslearn.model.arith import Arith
from dslearn.model.hyper import collapse, expand
from dslearn.model.loading import load_model
from dslearn.model.moe import Expert
from tests.support.models import EXACT, build, prompt, save, small_config, token_map
from tests.support.on_sim import on_sim

KERNELS = {"fp8_folded", "fp8_linear", "fp4_widened", "fp4_linear"}
RELEASED = small_config(
    quantization_config={
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [32, 32],
        "scale_fmt": "ue8m0",
        "expert_dtype": "fp4",
    }
)


def normal(*shape):
    return torch.from_numpy(np.random.default_rng(1).standard_normal(shape, np.float32))


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A small random model in the released formats, and how to load it under other numerics."""
    directory = save(tmp_path_factory.mktemp("released"), RELEASED, "released")
    mapping = token_map(RELEASED)

    def load(**switches):
        pad = int(mapping[RELEASED["engram_pad_token_id"]])
        return load_model(
            directory, Numerics(**switches), engram_token_map=mapping, engram_pad_id=pad
        )

    return load


@pytest.mark.parametrize("weight", [None, 0.5, torch.tensor([[0.5], [2.0], [0.0]])], ids=repr)
def test_an_expert_with_and_without_router_weights(released, weight):
    model = released()
    for expert in (model.layers[0].ffn.experts[1], model.layers[0].ffn.shared_experts):
        assert isinstance(expert, Expert)
        x = normal(3, 32)
        y, called = on_sim(expert, x, weight)
        assert called.pop("swiglu") == 1 and sum(called.values()) == 3
        assert torch.allclose(y, expert(x, weight), rtol=1e-3, atol=1e-3) and y.any()


@pytest.mark.parametrize("rows", [1, 2, 16, 17])
def test_experts_in_use_are_listed_while_rows_are_few(released, rows):
    ffn = released().layers[2].ffn
    x = normal(rows, 32)
    (y, ids, _), called = on_sim(ffn, x)
    many = 3 * len(ids.unique())
    assert called.get("widened_active", 0) == (3 if rows <= 16 else 0)
    assert called.get("fp4_widened", 0) == (0 if rows <= 16 else many)
    assert torch.allclose(y, ffn(x)[0], rtol=1e-3, atol=1e-3) and y.any()
    for expert in ffn.every():
        expert.w2.weight.mul_(2)  # what the list reads is made again
    assert not torch.equal(on_sim(ffn, x)[0][0], y)
    assert torch.allclose(on_sim(ffn, x)[0][0], ffn(x)[0], rtol=1e-3, atol=1e-3)


def test_a_step_takes_kernels_for_every_quantised_linear(released):
    model, ids = released(), prompt(RELEASED, 6)
    state = model.new_state(1, 8)
    model.forward(ids[:, :5], state)
    (logits, called), cfg = on_sim(model.forward, ids[:, 5:], state), model.cfg
    layers, fp8 = cfg.num_hidden_layers, called["fp8_folded"]
    assert called["widened_active"] == 3 * layers and called["swiglu"] == 2 * layers
    fixed = layers * (4 + 3) + len(cfg.engram_layer_ids)  # attention, shared expert
    assert fixed <= fp8 <= fixed + len(cfg.index_source_layer_ids), "few entries need no scores"
    assert called["rmsnorm"] >= 4 * layers + 1 and logits.isfinite().all()


def test_on_cpu_nothing_is_called_and_nothing_changes(released):
    model, ids = released(), prompt(RELEASED, 7)
    with ops.collect() as taken:
        before = model.forward(ids)
    assert not taken.counts()
    on_sim(model.forward, ids)
    assert torch.equal(model.forward(ids), before)


@pytest.mark.parametrize(
    "switches",
    [
        {},
        {"arithmetic": "bf16"},
        {"activations": False},
        {"activations": False, "arithmetic": "bf16"},
        {"fp8_max": 240, "caches": False},
        {"row_invariant": True},
    ],
    ids=str,
)
def test_logits_are_the_models_under_every_switch(released, switches):
    model, ids = released(**switches), prompt(RELEASED, 9)
    logits, called = on_sim(model.forward, ids)
    expected = model.forward(ids)
    gap = (logits - expected).abs().amax(-1) / expected.std()
    assert "rmsnorm" in called and float(gap.median()) < 0.05, gap
    assert bool(KERNELS & set(called)) is (switches != {"activations": False})


def test_ragged_batches_and_steps_agree_with_the_cpu(released):
    model, ids = released(), prompt(RELEASED, 8).view(2, 4)

    def run():
        state = model.new_state(2, 6)
        first = model.forward(ids[:, :3], state, lengths=[3, 2])
        return torch.cat((first[:, -2:], model.forward(ids[:, 3:], state)), 1)

    logits, _ = on_sim(run)
    gap = (logits - run()).abs().amax(-1)
    gap[1, 1] = 0.0  # past the end of the shorter sequence
    assert float(gap.median()) < 0.05 * float(logits.std()) and logits.isfinite().all()


def test_images_leave_engram_alone_there_too(released):
    model, ids = released(), prompt(RELEASED, 5)
    image = torch.tensor([[False, True, True, False, False]])
    options = {"image_mask": image, "embeds": torch.ones(1, 5, 32)}

    def gates():
        trace: dict = {}
        model.forward(ids, trace=trace, **options)
        return trace["layers"][1]["engram_gates"]

    gate, called = on_sim(gates)
    assert torch.allclose(gate, gates(), atol=1e-3) and called["engram_gate"] == 2
    assert not gate[image].any() and (gate[~image] > 0).all()


def test_streams_of_any_leading_shape():
    arith, h = Arith(Numerics()), normal(2, 3, 4, 40)
    weights, y, comb = normal(2, 3, 4), normal(2, 3, 40), normal(2, 3, 4, 4)
    read, called = on_sim(collapse, h, weights, arith)
    written, also = on_sim(expand, y, h, weights, comb, arith)
    assert called == {"hc_collapse": 1} and also == {"hc_expand": 1}
    assert torch.allclose(read, collapse(h, weights, arith), atol=1e-5) and read.any()
    assert torch.allclose(written, expand(y, h, weights, comb, arith), atol=1e-5)


def test_mixes_follow_a_changed_projection():
    layer = build(small_config()).layers[0].hc_attn
    h = normal(2, 2, 3, 32)
    for _ in range(2):
        parts, called = on_sim(layer, h)
        expected = layer(h)
        assert called == {"hc_mixes": 1}
        for part, want in zip(parts, expected, strict=True):
            assert part.shape == want.shape and torch.allclose(part, want, atol=1e-5)
        layer.fn.mul_(2)


def test_row_invariant_chunks_give_the_same_bytes(released):
    model, ids = released(row_invariant=True), prompt(RELEASED, 6)

    def chunked(sizes):
        state = model.new_state(1, 8)
        return torch.cat([model.forward(part, state) for part in ids.split(sizes, 1)], 1)

    whole, called = on_sim(chunked, [6])
    parts, _ = on_sim(chunked, [1, 3, 2])
    assert torch.equal(whole, parts) and called["fp8_folded"]


def test_plain_models_keep_their_products(released):
    model, ids = build(small_config(), EXACT), prompt(RELEASED, 5)
    logits, called = on_sim(model.forward, ids)
    assert "hc_mixes" in called and not KERNELS & set(called)
    assert torch.allclose(logits, model.forward(ids), rtol=1e-3, atol=1e-3)
