"""A capture finds what a compiler does silently wrong, in what it gives and in what it stores."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from dslearn import Numerics, regions
from dslearn.errors import GraphError
from dslearn.ops.rmsnorm import rmsnorm
from dslearn.regions import compiled
from dslearn.regions.compared import PART, beside, comparing
from dslearn.regions.graph_runner import GraphRunner
from tests.support.models import EXACT, build, differences, prompt, small_config

pytestmark = pytest.mark.usefixtures("own_graphs")
RAW = small_config()
RECORDS = Numerics(activations=False, caches=True)
ROOM = 72


@pytest.fixture
def planted(monkeypatch):
    """A compiler that is wrong: after each of its graphs, `corrupt(inputs, outputs)` is called."""

    def plant(corrupt):
        real = compiled.compile_graph

        def wrong(module, inputs, kept):
            graph = real(module, inputs, kept)

            def run(*given):
                return corrupt(given, graph.run(*given))

            return type(graph)(run, graph.written, graph.how, graph.input_bytes)

        monkeypatch.setattr(compiled, "compile_graph", wrong)

    return plant


def one_bit_of_a_record(inputs, outputs):
    """The lowest bit of one byte that the graph could have stored; the logits never see it."""
    for one in inputs:
        if isinstance(one, torch.Tensor) and one.dtype is torch.uint8 and one.dim() > 1:
            one.view(-1)[-1].bitwise_xor_(1)
            break
    return outputs


def a_little_of_an_output(inputs, outputs):
    """One element in a thousandth of the output: far below what the logits are allowed."""
    outputs[0].view(-1)[0].mul_(1.001)
    return outputs


@pytest.mark.parametrize(
    ("corrupt", "said"),
    [
        (one_bit_of_a_record, r"attention_half: the compiled graph.*input \d+ after the call \["),
        (a_little_of_an_output, r"engram_half|attention_half.*differs.*output 0 \["),
    ],
)
@pytest.mark.parametrize("mode", ["regions", "whole"])
def test_a_planted_corruption_is_caught_at_capture(planted, corrupt, said, mode):
    planted(corrupt)
    runner = GraphRunner(build(RAW, RECORDS), 2, ROOM, mode)
    if mode == "whole":
        said = said.replace("attention_half", "Model.step").replace("engram_half|", "")
    with pytest.raises(GraphError, match=said):
        runner.capture()
    assert not runner.can_run(1)


def test_nothing_is_compared_outside_of_a_capture():
    """A wrong graph goes by: a comparison runs everything twice."""
    ran = []

    def captured(x):
        ran.append("captured")
        return (x + 1,)

    run = beside("one", lambda x: (x + 2,), captured)
    assert run(torch.zeros(1)) == (torch.full((1,), 2.0),) and not ran
    with comparing(), pytest.raises(GraphError, match=r"region one: .*output 0 \[0\]: 2.0 instead"):
        run(torch.zeros(1))
    assert ran == ["captured"]


def test_the_second_run_has_memory_of_its_own_and_views_of_one_memory_stay_so():
    weight, pool = torch.nn.Parameter(torch.ones(2)), torch.zeros(4)
    seen = []

    def store(weight, whole, part):
        seen.append((weight, whole, part))
        part.copy_(weight)
        return (whole.sum(),)

    with torch.inference_mode(), comparing():
        (total,) = beside("one", store, store)(weight, pool, pool[2:])
    assert total == 2 and pool.tolist() == [0, 0, 1, 1]
    (copied, original) = seen
    assert original[0] is weight and original[1] is pool
    assert copied[0].data_ptr() != weight.data_ptr() and copied[1].data_ptr() != pool.data_ptr()
    assert copied[2].untyped_storage().data_ptr() == copied[1].untyped_storage().data_ptr()


def test_a_graph_that_was_wrong_is_not_run_again():
    ran = []

    def compiled(x):
        ran.append(x)
        return (x + 2,)

    run = beside("one", compiled, lambda x: (x + 1,))
    with comparing(), pytest.raises(GraphError, match="differs"):
        run(torch.zeros(1))
    with pytest.raises(GraphError, match="differs"):
        run(torch.zeros(1))
    assert len(ran) == 1


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.pool = torch.nn.Parameter(torch.zeros(4, 2), requires_grad=False)
        self.weight = torch.nn.Parameter(torch.full((2, 2), 2.0))

    @regions.region(stage="add")
    def add(self, rows, x):
        self.pool[1:].index_add_(0, rows, x @ self.weight)
        return self.pool.sum()

    @regions.region(stage="noise")
    def noise(self, x):
        return x + torch.rand(3)

    @regions.region(stage="normed")
    def normed(self, x):
        return rmsnorm(x, self.weight[0], 1e-6)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_parameter_that_is_written_is_written_once(mode):
    """A cache may be a Parameter."""
    layer = Layer()
    with mode(), regions.use("regions"), comparing():
        total = layer.add(torch.tensor([1]), torch.ones(1, 2))
    assert total == 8 and layer.pool.tolist() == [[0, 0], [0, 0], [4, 4], [0, 0]]


@pytest.mark.parametrize("shape", [(4, 2), (2, 2)], ids=["written", "read"])
def test_a_store_astray_in_a_parameter_is_seen(planted, shape):
    def astray(inputs, outputs):
        next(one for one in inputs if one.shape == shape)[1, 1] = 5
        return outputs

    planted(astray)
    with torch.no_grad(), regions.use("regions"), comparing(), pytest.raises(GraphError, match="5"):
        Layer().add(torch.tensor([1]), torch.ones(1, 2))


def test_random_numbers_are_drawn_as_without_a_comparison():
    layer, x, seen = Layer(), torch.ones(3), []
    for around in (nullcontext, comparing):
        torch.manual_seed(0)
        with torch.no_grad(), regions.use("regions"), around():
            seen.append((layer.noise(x), torch.rand(2)))
    assert all(map(torch.equal, *seen))


def test_inputs_that_autograd_made_are_copied():
    made = Layer().weight[0] * 3
    run = beside("one", lambda x: (x + 1,), lambda x: (x + 1,))
    with torch.no_grad(), comparing():
        assert run(made)[0].tolist() == [7, 7]


def test_a_stage_is_charged_for_its_own_run_alone():
    layer = Layer()
    with torch.no_grad(), regions.use("regions"), comparing(), regions.record() as ledger:
        layer.normed(torch.ones(3, 2))
    launches = {name: row.twins for name, row in ledger.rows.items()}
    assert launches == {"normed (Layer)": 1, PART: 1}


@pytest.mark.parametrize("mode", ["regions", "whole"])
def test_both_modes_replay_what_eager_says_and_stores(mode):
    runner = GraphRunner(build(RAW, EXACT), 2, ROOM, mode)
    runner.capture()
    regions.warm()
    plain = runner.model.new_state(3, ROOM)
    with torch.inference_mode(), regions.use("eager"):
        want = [runner.model.forward(prompt(RAW, 21), plain, lanes=torch.tensor([0]))[0, -1]]
        for _ in range(3):
            ids = want[-1].argmax().view(1, 1)
            want.append(runner.model.forward(ids, plain, lanes=torch.tensor([0]))[0, -1])
    got = [runner.prefill(prompt(RAW, 21)[0], 0)]
    for _ in range(3):
        got.append(runner.replay(got[-1].argmax().view(1), torch.tensor([0]))[0])
    assert torch.allclose(torch.stack(got), torch.stack(want), atol=1e-4)
    runner.state.clear(2)  # the scratch lane of prefill's padding
    assert not differences(runner.state, plain, tolerance=1e-4)
