"""The model in graph modes: what eager gives, few graphs, and never one more than was made."""

from __future__ import annotations

import pytest
import torch

from dslearn import regions
from dslearn.engine import LM
from dslearn.engine.lm import GRAPH_ROOM
from dslearn.errors import GraphError, UsageError
from dslearn.model import stage
from dslearn.model.chunks import CHUNK
from dslearn.numerics import Numerics
from tests.support.models import EXACT, build, differences, prompt, small_config

pytestmark = pytest.mark.usefixtures("own_graphs")
PROMPT = 20
# Window only; a source of ratio 2; one that borrows; the publisher of ratio 1; one that filters.
ROLES = 5


def text(model, state, steps=3):
    """Logits of a prompt and of steps that close groups on either parity."""
    ids = prompt(model.cfg_raw, PROMPT + steps)
    lm = LM(model, None)
    parts = [lm.forward(ids[:, :PROMPT], state)]
    parts += [lm.forward(ids[:, at : at + 1], state) for at in range(PROMPT, PROMPT + steps)]
    return torch.cat(parts, 1)


def made(numerics=EXACT, **changed):
    """A small model that knows its config as it was written."""
    raw = small_config(**changed)
    model = build(raw, numerics)
    object.__setattr__(model, "cfg_raw", raw)
    return model


def graphs():
    return {line.region.partition(".")[2]: line.graphs for line in regions.report()}


@pytest.mark.parametrize("numerics", [EXACT, Numerics(activations=False)], ids=["rows", "records"])
@pytest.mark.parametrize("mode", ["regions", "whole"])
def test_graphs_say_and_store_what_eager_does(mode, numerics):
    model = made(numerics)
    plain = model.new_state(1, GRAPH_ROOM)
    with regions.use("eager"):
        want = text(model, plain)
    with regions.use(mode):
        state = LM(model, None).new_state(1, PROMPT + 3)
        assert state.max_len == GRAPH_ROOM
        got = text(model, state)
    assert torch.allclose(got, want, atol=1e-4)
    assert not differences(state, plain, tolerance=1e-4)
    per_shape = (
        {"step": 1}
        if mode == "whole"
        else {"engram_half": 1, "attention_half": ROLES, "expert_half": 1, "output": 1}
    )
    assert graphs() == {name: 2 * count for name, count in per_shape.items()}, "prefill and decode"
    assert not [line.warnings for line in regions.report() if line.warnings]


@pytest.mark.parametrize("mode", ["regions", "whole"])
def test_after_warm_nothing_is_compiled(mode):
    model = made()
    with regions.use(mode):
        text(model, model.new_state(1, GRAPH_ROOM))
        before = regions.report().graphs
        regions.warm()
        for kind in (torch.inference_mode, torch.no_grad):
            with kind():  # a state of either kind, read in either mode, is the same to a graph
                text(model, model.new_state(1, GRAPH_ROOM), 9)
                ids = prompt(model.cfg_raw, CHUNK)
                model.forward(ids, model.new_state(1, GRAPH_ROOM), [7])
        assert regions.report().graphs == before
        with pytest.raises(GraphError, match=r"no graph for this call.*size mismatch"):
            LM(model, None).forward([[1], [2]], model.new_state(2, GRAPH_ROOM))


def test_a_long_ragged_prompt_goes_through_in_chunks():
    model, lengths = made(), [CHUNK + 9, 3]
    ids = torch.cat([prompt(model.cfg_raw, CHUNK + 9, seed) for seed in (0, 1)])
    states = [model.new_state(2, GRAPH_ROOM) for _ in range(2)]
    with regions.use("eager"):
        want = LM(model, None).forward(ids, states[0], lengths)
    with regions.use("regions"):
        got = LM(model, None).forward(ids, states[1], lengths)
        assert graphs()["output"] == 1
    assert got.shape == want.shape
    for row, length in enumerate(lengths):
        assert torch.allclose(got[row, :length], want[row, :length], atol=1e-4)
    assert not differences(states[1], states[0], tolerance=1e-4)


def test_gradients_and_graphs_exclude_each_other():
    model = made().requires_grad_(True)
    with regions.use("regions"), pytest.raises(UsageError, match="regions are for inference"):
        model.forward(prompt(model.cfg_raw, 5))
    assert not stage.compiles()
    assert model.forward(prompt(model.cfg_raw, 5)).requires_grad


def test_a_step_is_charged_stage_by_stage():
    model = made()
    with regions.record() as ledger:
        text(model, model.new_state(1, GRAPH_ROOM), steps=0)
    assert ledger.steps == 1
    calls = {name.partition(" ")[0]: row.calls for name, row in ledger.rows.items()}
    stages = {"engram": 2, "attention": 5, "experts": 5, "head": 1, "step": 1}
    assert calls == stages | {"plan": 4, "outside": 1}
