"""How many graphs a model becomes, and how many bytes go in: planned, counted, never copied."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_leaves

from dslearn import regions
from dslearn.checkpoint.inventory import inventory
from dslearn.config import Config
from dslearn.model.block import Block
from dslearn.model.model import Model
from dslearn.regions.compile_plan import attention_roles, compile_plan
from dslearn.regions.compiled import Region
from tests.support.models import EXACT, build, small_config

RELEASED = json.loads((Path(__file__).parents[1] / "data" / "v4_1_flash_config.json").read_text())
PATTERN = (
    "num_hidden_layers",
    "compress_ratios",
    "kv_source_layer_ids",
    "index_source_layer_ids",
    "candidate_source_layer_id",
    "engram_layer_ids",
)


def released_roles():
    """The released config's layers at a size for tests."""
    text = RELEASED.get("text_config", RELEASED)
    pattern = {name: text[name] for name in PATTERN}
    pattern["compress_ratios"] = pattern["compress_ratios"][: text["num_hidden_layers"]]
    return small_config(**pattern)


def stacked(layers):
    """One layer of window only, one source, and layers that borrow from it."""
    return small_config(
        num_hidden_layers=layers,
        compress_ratios=[0] + [2] * (layers - 1),
        kv_source_layer_ids=[1],
        index_source_layer_ids=[1],
        candidate_source_layer_id=None,
        engram_layer_ids=[1, 3],
        dspark_target_layer_ids=[1, 2, 3],
    )


def step(model, batch=2, room=32):
    """A decode step in mode regions, as a graph runner takes it -> its state."""
    state = model.new_state(batch + 1, room)
    with torch.inference_mode(), regions.use("regions"):
        ids = torch.ones(batch, 1, dtype=torch.int64)
        model.forward(ids, state, [1] * batch, torch.arange(batch))
    return state


def graphs():
    return {line.region: line.graphs for line in regions.report()}


@pytest.mark.usefixtures("own_graphs")
@pytest.mark.parametrize("layers", [4, 64])
def test_layers_do_not_add_graphs(layers):
    step(build(stacked(layers), EXACT))
    assert graphs() == {
        "Block.attention_half": 3,
        "Block.expert_half": 1,
        "Block.engram_half": 1,
        "Model.output": 1,
    }
    calls = {line.region: line.calls for line in regions.report()}
    assert calls["Block.attention_half"] == calls["Block.expert_half"] == layers


@pytest.mark.usefixtures("own_graphs")
def test_forty_layers_in_the_released_roles_are_six_graphs_of_attention():
    raw = released_roles()
    cfg = Config.from_dict(raw)
    assert cfg.num_hidden_layers == 40 and len(set(attention_roles(cfg))) == 6
    step(build(raw, EXACT))
    assert graphs()["Block.attention_half"] == 6
    (line,) = compile_plan(cfg, 1, 32)[1:]
    assert (line.graphs, line.regions) == (sum(graphs().values()), len(graphs()))
    assert line.calls == sum(one.calls for one in regions.report())


def test_the_plan_of_the_released_config_needs_no_weights():
    cfg = Config.from_dict(RELEASED)
    plan = compile_plan(cfg, 30, 4096)
    assert [line.batch for line in plan] == [1, 30, 24, 16, 8, 4, 2, 1]
    assert {line.graphs for line in plan} == {9} and plan.graphs == 72
    on_host = sum(
        spec.nbytes
        for name, spec in inventory(cfg, ("target",)).items()
        if name == "embed.weight" or ".engram.embed." in name
    )
    every = sum(spec.nbytes for spec in inventory(cfg, ("target",)).values())
    assert {line.weights for line in plan} == {every - on_host}
    assert plan[1].rows > plan[2].rows > plan[-1].rows
    whole = compile_plan(cfg, 30, 4096, "whole")
    assert {(line.graphs, line.calls) for line in whole} == {(1, 1)}
    assert whole[0].caches == plan[0].caches and "8 graphs in all" in str(whole)


@pytest.mark.usefixtures("own_graphs")
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("raw", [small_config(), stacked(5)], ids=["roles", "stacked"])
def test_every_input_is_contiguous_and_as_large_as_planned(monkeypatch, raw, batch):
    """Inputs of each call, its weights not counted: no pool is copied, each is the state's own."""
    seen, real = [], Region.__call__

    def call(self, owner, *args, **kwargs):
        each = {id(x): x for x in tree_leaves(args) if isinstance(x, torch.Tensor)}
        seen.append((self.name, list(each.values())))  # a tensor that comes twice is one input
        return real(self, owner, *args, **kwargs)

    monkeypatch.setattr(Region, "__call__", call)
    state = step(build(raw, EXACT), batch)
    pools = [
        x for i in range(len(state.layers)) for x in tree_leaves(state.pools(i)) if x is not None
    ]
    storages = {pool.untyped_storage().data_ptr() for pool in pools}
    given = taken = 0
    for _, tensors in seen:
        assert all(x.is_contiguous() for x in tensors)
        for x in tensors:
            if x.untyped_storage().data_ptr() in storages:
                taken += x.nbytes
            else:
                given += x.nbytes
    plan = compile_plan(Config.from_dict(raw), batch, 32)
    line = next(one for one in plan if (one.batch, one.tokens) == (batch, 1))
    assert taken == sum(x.nbytes for x in pools), "each layer is handed the pools themselves"
    # Streams, plans, Engram rows, and the selection that some layers hand on.
    assert given == line.rows
    assert {name for name, _ in seen} == {
        f"{Block.__name__}.{half}" for half in ("engram_half", "attention_half", "expert_half")
    } | {f"{Model.__name__}.output"}
