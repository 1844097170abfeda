"""The graph runner: its contract, rows that are padded, tokens that do not depend on the batch."""

from __future__ import annotations

import pytest
import torch

from dslearn import regions
from dslearn.errors import GraphError, StateError, UsageError
from dslearn.regions import graph_runner
from dslearn.regions.graph_runner import GraphRunner, buckets
from tests.support.models import EXACT, build, prompt, small_config, tensors_of

pytestmark = pytest.mark.usefixtures("shared_graphs")
RAW = small_config()
LANES, ROOM, STEPS = 5, 72, 4
LENGTHS = [3, 21, 8, 40, 66]


@pytest.fixture(scope="module")
def runner(shared_graphs):
    made = GraphRunner(build(RAW, EXACT), LANES, ROOM)
    made.capture()
    regions.warm()
    return made


@pytest.fixture(autouse=True)
def free_lanes(runner):
    """Each test finds the lanes free."""
    yield
    for lane in range(LANES + 1):
        runner.state.clear(lane)


def text(lane):
    return prompt(RAW, LENGTHS[lane], lane)


def alone(model, lane):
    """Greedy tokens after a prompt, and the logits of each."""
    state, said = model.new_state(1, ROOM), []
    logits = model.forward(text(lane), state)[0, -1]
    for _ in range(STEPS):
        said.append(logits)
        logits = model.forward(logits.argmax().view(1, 1), state)[0, -1]
    return torch.stack(said)


@pytest.mark.parametrize(
    ("largest", "sizes"),
    [
        (1, (1,)),
        (3, (1, 2, 3)),
        (8, (1, 2, 4, 8)),
        (9, (1, 2, 4, 8, 9)),
        (16, (1, 2, 4, 8, 16)),
        (30, (1, 2, 4, 8, 16, 24, 30)),
    ],
)
def test_buckets(largest, sizes):
    assert buckets(largest) == sizes


def test_every_batch_size_says_what_each_sequence_says_alone(runner):
    """Rows of another lane order at every size; a lane is used again after `release`."""
    assert runner.buckets == (1, 2, 4, 5)
    before = regions.report().graphs
    wanted = [alone(runner.model, lane) for lane in range(LANES)]
    for size in range(1, LANES + 1):
        order = torch.randperm(LANES, generator=torch.Generator().manual_seed(size))[:size]
        logits = torch.stack([runner.prefill(text(lane)[0], lane) for lane in order.tolist()])
        for step in range(STEPS):
            want = torch.stack([wanted[lane][step] for lane in order.tolist()])
            assert torch.allclose(logits, want, atol=1e-4)
            assert torch.equal(logits.argmax(-1), want.argmax(-1))
            logits = runner.replay(logits.argmax(-1), order)
        for lane in order.tolist():
            runner.release(lane)
    assert regions.report().graphs == before, "nothing was compiled after capture"


def lanes_of(state):
    """The bytes of every pool, lane by lane but the scratch lane."""
    return {name: x[:LANES].clone() for name, x in tensors_of(state)}


def test_padded_rows_touch_no_lane_and_what_the_scratch_lane_holds_is_not_read(runner):
    runs = []
    for garbage in (False, True):
        logits = runner.prefill(text(1)[0], 1)
        runner.prefill(text(3)[0], 3)
        if garbage:
            for _, pool in tensors_of(runner.state):
                if pool.is_floating_point():
                    pool[LANES] = torch.nan
        before = lanes_of(runner.state)
        got = runner.replay(logits.argmax().view(1).repeat(3)[:3], torch.tensor([1, 3, 0]))
        after = lanes_of(runner.state)
        for name, x in before.items():
            for lane in (2, 4):
                assert torch.equal(x[lane], after[name][lane]), f"{name} of lane {lane}"
        runs.append((got, after))
        for lane in (0, 1, 3):
            runner.release(lane)
    assert torch.equal(runs[0][0], runs[1][0])
    assert all(torch.equal(x, runs[1][1][name]) for name, x in runs[0][1].items())
    assert runner.state.positions[LANES] == 0


def test_what_cannot_run(runner):
    assert [n for n in range(LANES + 2) if runner.can_run(n)] == [1, 2, 3, 4, 5]
    two = torch.tensor([1, 1])
    with pytest.raises(UsageError, match=r"lanes=.*none twice"):
        runner.replay(two, two)
    with pytest.raises(UsageError, match=r"replay of 6 rows: must be 1..5"):
        runner.replay(torch.zeros(6, dtype=torch.int64), torch.arange(6))
    with pytest.raises(UsageError, match=r"must be 0..4"):
        runner.replay(two[:1], torch.tensor([LANES]))
    with pytest.raises(UsageError, match=r"lane=5: must be 0..4"):
        runner.prefill(text(0)[0], LANES)  # the scratch lane is no sequence's
    with pytest.raises(UsageError, match=r"lane=-1: must be 0..4"):
        runner.release(-1)
    runner.prefill(text(0)[0], 0)
    with pytest.raises(UsageError, match="capture first"):
        runner.capture()
    with pytest.raises(StateError, match="max_len=72"):
        runner.prefill(torch.zeros(ROOM, dtype=torch.int64), 0)


def test_before_capture_nothing_runs():
    runner = GraphRunner(build(RAW, EXACT), 2, ROOM)
    assert not runner.can_run(1)
    with pytest.raises(UsageError, match=r"capture\(\) comes first"):
        runner.replay(torch.tensor([1]), torch.tensor([0]))
    with pytest.raises(UsageError, match="must be regions or whole"):
        GraphRunner(runner.model, 2, ROOM, "eager")
    with pytest.raises(UsageError, match="max_num_seqs=0"):
        buckets(0)


def test_a_compiler_that_is_wrong_is_noticed(monkeypatch):
    """Of a batch, one row is a little off: capture names it."""
    runner = GraphRunner(build(RAW, EXACT), 2, ROOM)
    right = GraphRunner._run

    def wrong(self, ids, mode):
        logits = right(self, ids, "eager")
        if mode != "eager" and ids.shape[1] == 2:
            logits[1] *= 1.05
        return logits

    monkeypatch.setattr(graph_runner.GraphRunner, "_run", wrong)
    with pytest.raises(GraphError, match=r"batch 2, 1 tokens.*in row 1"):
        runner.capture()
    assert not runner.can_run(1)


def test_a_capture_that_failed_leaves_the_lanes_empty(monkeypatch):
    """Whatever ended it: what was stored is gone, and `capture` can be called again."""
    runner = GraphRunner(build(RAW, EXACT), 2, ROOM)
    before = [tensor.clone() for _, tensor in tensors_of(runner.state)]
    right, calls = runner.model.forward, []

    def fails(*args):
        calls.append(1)
        if len(calls) == 4:  # the chunk; eager code on it; a step of the largest bucket; this one
            raise GraphError("a step later")
        with regions.use("eager"):
            return right(*args)

    monkeypatch.setattr(runner.model, "forward", fails)
    for _ in range(2):
        calls.clear()
        with pytest.raises(GraphError, match="a step later"):
            runner.capture()
        assert all(
            torch.equal(a[1], b) for a, b in zip(tensors_of(runner.state), before, strict=True)
        )
