"""One training step: stored weights, dense attention, the index lesson, balance, optimisers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dslearn.checkpoint.reader import Checkpoint
from dslearn.checkpoint.storage import quantise
from dslearn.checkpoint.writer import write
from dslearn.config import Config
from dslearn.model import Model
from dslearn.model.attention_dense import index_loss
from dslearn.model.engram_hash import EngramHash
from dslearn.model.weights import named_tensors
from tests.support.random_model import random_dense, tiny_random_config, token_map
from training import plan
from training.initial import initialise
from training.optimiser import Optimiser
from training.quantised import as_stored, stored_weights
from training.trainer import BIAS_RATE, PLAIN, Trainer

RAW = tiny_random_config(max_position_embeddings=64)
CFG = Config.from_dict(RAW)


@pytest.fixture(scope="module")
def dense() -> dict[str, torch.Tensor]:
    return random_dense(CFG, seed=2)


def hashing() -> EngramHash:
    return EngramHash(CFG, torch.from_numpy(token_map(RAW)), 2)


@pytest.fixture
def model(dense) -> Model:
    made = Model(CFG, PLAIN, hashing())
    with torch.no_grad():
        for name, parameter in named_tensors(made):
            parameter.copy_(dense[name])
    return made


def ids(rows: int, length: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(4).integers(3, 158, size=(rows, length)))


def test_storing_twice_is_storing_once(dense):
    once = as_stored(CFG, dense)
    twice = as_stored(CFG, once)
    assert once.keys() == dense.keys()
    assert all(torch.equal(once[name], twice[name]) for name in once)
    moved = [name for name in once if not torch.equal(once[name], dense[name])]
    assert any(".experts." in name for name in moved) and any("wq_a" in name for name in moved)
    assert not any("hc_" in name for name in moved), "fp32 tensors stay"


def test_stored_values_are_those_of_the_exported_checkpoint(dense, tmp_path):
    write(tmp_path / "out", RAW, quantise(CFG, dense))
    checkpoint = Checkpoint(tmp_path / "out")
    for name, value in as_stored(CFG, dense).items():
        assert torch.equal(value, checkpoint.dense(name)), name


def test_full_weights_return_after_a_quantised_step_even_if_it_fails(model, dense):
    named = dict(named_tensors(model))
    stored = as_stored(CFG, dense)
    with pytest.raises(RuntimeError, match="boom"), stored_weights(CFG, named):
        assert all(torch.equal(p, stored[name]) for name, p in named.items())
        raise RuntimeError("boom")
    assert all(torch.equal(p, dense[name]) for name, p in named.items())


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 25])
def test_dense_attention_is_the_gathering_attention(model, length):
    tokens = ids(2, length)
    with_gradients = model(tokens)
    assert with_gradients.requires_grad
    with torch.no_grad():
        gathered = model(tokens)
    apart = (with_gradients - gathered).abs().max() / gathered.abs().max()
    assert apart < 1e-5, f"{apart:.1e}"


def test_index_loss_is_zero_where_scores_are_log_mass():
    mass = torch.tensor([[[0.1, 0.6, 0.0, 0.3], [0.0, 0.0, 0.0, 0.0], [2.0, 0.0, 0.0, 0.0]]])
    scores = torch.where(mass > 0, mass.clamp(min=1e-9).log() + 5, 3.0)
    assert index_loss(scores, mass).abs() < 1e-6
    uniform = index_loss(torch.zeros_like(scores), mass)
    p = np.array([0.1, 0.6, 0.3])
    by_hand = (p * np.log(p * 3)).sum() / 2  # two of the three queries see an entry
    assert uniform == pytest.approx(by_hand, abs=1e-6)
    assert index_loss(scores, torch.zeros_like(mass)) == 0


def test_index_loss_reaches_the_indexers_and_nothing_else(model):
    trace: dict = {"index_losses": []}
    model(ids(2, 25), trace=trace)
    assert len(trace["index_losses"]) == sum(ratio > 0 for ratio in CFG.ratios)
    torch.stack(trace["index_losses"]).sum().backward()
    for name, parameter in named_tensors(model):
        felt = parameter.grad is not None and bool(parameter.grad.abs().sum() > 0)
        assert felt == (".indexer." in name), name


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    made = Trainer(CFG, hashing(), world=1)
    initialise(made.model, seed=0)
    return made


def test_bias_moves_towards_experts_that_got_less(trainer):
    loads = torch.full((len(trainer.routers), CFG.n_routed_experts), 10.0)
    loads[:, 1], loads[:, 4] = 4.0, 16.0
    before = [router.bias.clone() for router in trainer.routers]
    trainer._balance(loads)
    for router, old in zip(trainer.routers, before, strict=True):
        moved = router.bias - old
        assert moved[1] == pytest.approx(BIAS_RATE) and moved[4] == pytest.approx(-BIAS_RATE)
        assert moved[[0, 2, 3, 5]].abs().max() < 1e-7
        assert router.bias.mean().abs() < 1e-7 and torch.equal(router.bias_vl, router.bias)


def test_steps_learn_in_every_phase(trainer):
    chunk = ids(2, 25)
    losses = []
    for fraction in (0.05, 0.06, 0.3, 0.31, 0.9, 0.91):
        figures = trainer.step(chunk, plan.phase(fraction))
        assert figures.shape == (2,) and torch.isfinite(figures).all() and figures[1] >= 0
        losses.append(float(figures[0]))
    assert losses[-1] < losses[0] - 0.1, losses
    stored = as_stored(CFG, {name: p.data for name, p in trainer.named.items()})
    assert any(not torch.equal(p, stored[name]) for name, p in trainer.named.items())


def test_every_parameter_has_one_optimiser_or_is_a_router_bias():
    model = Model(CFG, PLAIN, hashing())
    optimiser = Optimiser(model)
    held = [p for part in optimiser.parts for g in part.param_groups for p in g["params"]]
    assert len({id(p) for p in held}) == len(held)
    left = {name for name, p in named_tensors(model) if not any(p is q for q in held)}
    biases = {f"layers.{i}.ffn.gate.{b}" for i in range(8) for b in ("bias", "bias_vl")}
    assert left == biases


def test_initial_weights_fill_everything_and_repeat():
    def fresh(seed: int) -> dict[str, torch.Tensor]:
        model = Model(CFG, PLAIN, hashing())
        with torch.no_grad():
            for _, p in named_tensors(model):
                p.fill_(torch.nan)
        initialise(model, seed)
        return {name: p.detach() for name, p in named_tensors(model)}

    first, again, other = fresh(0), fresh(0), fresh(1)
    assert all(torch.isfinite(value).all() for value in first.values())
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])
