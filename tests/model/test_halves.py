"""Halves of blocks as graphs: one for all layers of a role, with what eager gives, step by step."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest
import torch

import dslearn
from dslearn import backend
from dslearn.model import chip
from dslearn.model.block import Block
from dslearn.model.loading import load_model
from dslearn.numerics import Numerics
from tests.support.captured import Graphs
from tests.support.models import build, differences, small_config

TINY = Path(dslearn.__file__).parent / "data" / "tiny"
HALVES = ("engram_half", "attention_half", "expert_half")
FOUR_ALIKE = small_config(
    num_hidden_layers=6,
    compress_ratios=[0, 2, 2, 2, 2, 2],
    kv_source_layer_ids=[1],
    index_source_layer_ids=[1],
    candidate_source_layer_id=None,
)
each_backend = pytest.mark.parametrize("name", ["cpu", "sim"])
IDS = (torch.arange(2 * 60) * 37 % 500).view(2, 60)


class Halves:
    """The halves of a model's blocks as graphs, in the place of its own inside a `with` block."""

    def __init__(self, model):
        self.model = model
        self.graphs = {half: Graphs(getattr(Block, half)) for half in HALVES}

    def __enter__(self):
        for block in self.model.layers:
            for half, graphs in self.graphs.items():
                call = lambda *given, block=block, graphs=graphs: graphs(block, *given)  # noqa: E731
                object.__setattr__(block, half, call)
        return self

    def __exit__(self, *_):
        for block in self.model.layers:
            for half in HALVES:
                delattr(block, half)

    def made(self):
        """How many graphs there are of each half."""
        return {half: len(graphs.made) for half, graphs in self.graphs.items()}


def stepped(model, state, tokens, steps=3, halves=None):
    """Logits of steps of `tokens` each, which close groups on either parity, and the state."""
    state, out = deepcopy(state), []
    for step in range(steps):
        ids = IDS[:, 40 + step * tokens :][:, :tokens] % model.cfg.vocab_size
        if halves is None:
            out.append(model.forward(ids, state))
        else:
            with halves:
                out.append(model.forward(ids, state))
    return torch.cat(out, 1), state


@each_backend
@pytest.mark.parametrize("tokens", [1, 3])
def test_tiny_has_a_graph_per_role_and_they_say_what_eager_says(name, tokens):
    model = load_model(TINY)
    model.fixed_counts = True
    start = model.new_state(2, 64)
    model.forward(IDS[:, :40], start)
    with backend.use(name), torch.no_grad():
        chip.prepare(model)
        want, eager = stepped(model, start, tokens, 1 if name == "sim" else 3)
        halves = Halves(model)
        got, state = stepped(model, start, tokens, 1 if name == "sim" else 3, halves)
    assert halves.made() == {"engram_half": 1, "attention_half": 6, "expert_half": 1}
    assert float((got - want).abs().max()) < 1e-4 * float(want.abs().max())
    assert not differences(state, eager)


@each_backend
def test_layers_of_one_role_share_a_graph(name):
    model = build(FOUR_ALIKE, Numerics(activations=False))
    model.fixed_counts = True
    start = model.new_state(2, 44)
    model.forward(IDS[:, :40] % 64, start)
    with backend.use(name), torch.no_grad():
        chip.prepare(model)
        halves = Halves(model)
        stepped(model, start, 1, 2, halves)  # a token that waits, and one that closes a group
    assert halves.made()["attention_half"] == 3, "window only, the owner, and four that borrow"


@pytest.mark.parametrize("numerics", [Numerics(), Numerics(caches=False)], ids=["records", "rows"])
def test_fixed_counts_change_shapes_and_nothing_else(numerics):
    """Entries that nobody wrote hold NaN; a query sees none of them."""
    model = build(small_config(), numerics)
    states = [model.new_state(2, 40) for _ in range(2)]
    for layer in states[1].layers:
        if layer.entries is not None:
            for pool in (layer.entries.data, layer.index_keys.data):
                pool.fill_(torch.nan if pool.is_floating_point() else 255)
    for a, b in ((0, 5), (5, 6), (6, 9), (9, 20)):
        model.fixed_counts = False
        want = model.forward(IDS[:, a:b] % 64, states[0])
        model.fixed_counts, trace = True, {}
        got = model.forward(IDS[:, a:b] % 64, states[1], trace=trace)
        assert [layer["topk"].shape[-1] for layer in trace["layers"][1:]] == [4] * 4
        assert torch.allclose(got, want, atol=1e-5)
