"""A call that names its lanes: the same as each sequence alone, and nothing else is touched."""

from __future__ import annotations

import pytest
import torch

from dslearn import backend
from dslearn.errors import StateError, UsageError
from dslearn.numerics import Numerics
from tests.support.models import EXACT, build, differences, prompt, small_config

RAW = small_config()
LENGTHS = [19, 6, 12]
ROOM = 48
KINDS = {"rows": EXACT, "records": Numerics(activations=False)}


@pytest.fixture(params=KINDS)
def model(request):
    return build(RAW, KINDS[request.param])


def texts():
    return [prompt(RAW, length + 6, seed) for seed, length in enumerate(LENGTHS)]


def alone(model, ids, length):
    """Logits of the steps after a prompt, and the state."""
    state = model.new_state(1, ROOM)
    model.forward(ids[:, :length], state)
    return [model.forward(ids[:, at : at + 1], state) for at in range(length, length + 6)], state


def spoil(state, lane):
    """Fill a lane with what must never be read: NaN, and bytes that decode to it."""
    for layer in state.layers:
        for pool in (layer.ring.data, *(e.data for e in (layer.entries, layer.index_keys) if e)):
            pool[lane] = torch.nan if pool.is_floating_point() else 255
        if layer.group is not None:
            layer.group.u[lane] = layer.group.g[lane] = torch.nan


@pytest.mark.parametrize("name", ["cpu", "sim"])
@pytest.mark.parametrize("order", [[3, 0, 2], [1, 2, 0]])
def test_rows_continue_the_lanes_that_are_named(model, order, name):
    steps = 2 if name == "sim" else 6
    state, scratch = model.new_state(5, ROOM), 4
    for lane in range(5):
        if lane not in order:
            spoil(state, lane)
    for lane, ids, length in zip(order, texts(), LENGTHS, strict=True):
        model.forward(ids[:, :length], state, lanes=torch.tensor([lane]))
    with backend.use(name):
        for step in range(steps):
            rows = [ids[0, length + step] for ids, length in zip(texts(), LENGTHS, strict=True)]
            ids = torch.stack([*rows, rows[0], rows[0]])[:, None]
            got = model.forward(
                ids, state, [1, 1, 1, 0, 0], torch.tensor([*order, scratch, scratch])
            )
            for row, (text, length) in enumerate(zip(texts(), LENGTHS, strict=True)):
                want = alone(model, text, length)[0][step][0]
                assert float((got[row] - want).abs().max()) < 1e-3 * float(want.abs().max())
    if name == "cpu":
        for lane, text, length in zip(order, texts(), LENGTHS, strict=True):
            gaps = differences(state, alone(model, text, length)[1], row=lane, tolerance=1e-4)
            assert not gaps
    assert state.positions[scratch] == 0


def test_a_cleared_lane_takes_another_sequence(model):
    state, lane = model.new_state(3, ROOM), torch.tensor([1])
    model.forward(texts()[0], state, lanes=lane)
    state.clear(1)
    assert not differences(state, model.new_state(1, ROOM), row=1)
    state.mark()
    with pytest.raises(StateError, match="clear in a marked block"):
        state.clear(1)


def test_rollback_of_lanes(model):
    state, ids = model.new_state(3, ROOM), texts()[0]
    model.forward(ids[:, :9], state, lanes=torch.tensor([2]))
    state.mark()
    model.forward(torch.cat((ids, ids))[:, 9:14], state, [5, 2], torch.tensor([2, 0]))
    state.rollback([0, 0, 11])
    fresh = model.new_state(3, ROOM)
    model.forward(ids[:, :9], fresh, lanes=torch.tensor([2]))
    model.forward(ids[:, 9:11], fresh, lanes=torch.tensor([2]))
    assert not differences(state, fresh, tolerance=1e-4)


@pytest.mark.parametrize(
    "lanes", [[0], [0, 0], [0, 3], [-1, 0], torch.tensor([0, 1], dtype=torch.int32)]
)
def test_lanes_that_are_none_are_refused(model, lanes):
    state = model.new_state(3, ROOM)
    with pytest.raises(UsageError, match="lanes="):
        model.forward(texts()[0].repeat(2, 1), state, lanes=torch.as_tensor(lanes))
    with pytest.raises(UsageError, match="give the state too"):
        model.forward(texts()[0], lanes=torch.tensor([0]))
    assert not state.positions.any()
