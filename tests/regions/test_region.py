"""Regions: the values of eager code, one graph for all layers, and no silence."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from dslearn import backend, regions
from dslearn.errors import GraphError, UsageError
from dslearn.model.stage import stage
from dslearn.regions import compiled
from dslearn.regions.compared import comparing
from tests.support.stack import Layer, Stack, inputs

pytestmark = pytest.mark.usefixtures("own_graphs")
HERE = Path(__file__).name


def lines():
    return {line.region: line for line in regions.report()}


@pytest.mark.parametrize("mode", ["eager", "regions", "whole"])
@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_values_and_stores_are_those_of_eager_code(mode, guard):
    plain, mine = Stack(), Stack()
    with guard():
        for rows in (2, 3, 1, 2):
            expected = plain(*inputs(rows))
            with regions.use(mode):
                assert torch.equal(mine(*inputs(rows)), expected)
            assert torch.equal(mine.pools(), plain.pools())
    assert plain.pools().abs().max() > 0


@pytest.mark.parametrize("layers", [4, 64])
def test_layers_share_graphs(layers):
    stack = Stack(layers)
    with torch.inference_mode(), regions.use("regions"):
        for rows in (2, 3):
            stack(*inputs(rows))
    assert set(lines()) == {"Layer.store"}, "stages inside a region are part of it"
    line = lines()["Layer.store"]
    assert (line.graphs, line.calls, line.stage) == (2, 2 * layers, "store")
    # h and rows, one weight, one pool: 3 rows of 8 fp32, 3 int64, 64 fp32, 16 rows of 8 fp32.
    assert line.input_bytes == 3 * 8 * 4 + 3 * 8 + 64 * 4 + 16 * 8 * 4
    assert line.whys[0] == "first call"
    assert "'h' size mismatch at index 0. expected 2, actual 3" in line.whys[1]
    assert "Layer.store" in str(regions.report()) and regions.report().graphs == 2


def test_a_whole_step_is_one_graph():
    stack = Stack(5)
    with torch.inference_mode(), regions.use("whole"):
        stack(*inputs())
        stack(*inputs())
    assert set(lines()) == {"Stack.forward"}
    assert (lines()["Stack.forward"].graphs, lines()["Stack.forward"].calls) == (1, 2)


def test_a_class_and_its_subclass_have_graphs_of_their_own():
    class Narrow(Layer):
        pass

    with torch.inference_mode(), regions.use("regions"):
        for layer in (Layer(0), Narrow(0), Layer(1)):
            layer.mixed(torch.ones(8))
    assert {name: line.graphs for name, line in lines().items()} == {
        "Layer.mixed": 1,
        "Narrow.mixed": 1,
    }


def test_after_warm_a_new_shape_is_an_error_that_names_the_guard():
    stack = Stack()
    with torch.inference_mode(), regions.use("regions"):
        stack(*inputs(2))
        regions.warm()
        stack(*inputs(2))
        with pytest.raises(GraphError, match="expected 2, actual 3") as refused:
            stack(*inputs(3))
        assert "region Layer.store" in str(refused.value)
        with pytest.raises(GraphError, match=r"Layer.mixed .*first call"):
            stack.layers[0].mixed(torch.ones(8))
        regions.warm(False)
        stack(*inputs(3))
    assert lines()["Layer.store"].graphs == 2


def test_a_number_that_differs_between_layers_ends_in_an_error(monkeypatch):
    monkeypatch.setattr(compiled, "LIMIT", 12)
    with torch.inference_mode(), regions.use("regions"):
        for number in range(12):  # more than torch's own limit, after which it would run eagerly
            assert Layer(number).numbered(torch.ones(2)).tolist() == [number] * 2
        with pytest.raises(GraphError, match="12 graphs, as many as a region may.*number"):
            Layer(99).numbered(torch.ones(2))
    line = lines()["Layer.numbered"]
    assert line.graphs == 12
    # Without torch's copy of the line, its hint, and its stacks; the latest graphs only.
    at = r"\(\S*stack.py:\d+\)"
    assert re.fullmatch(f"self.number == 0 {at}", line.whys[1])
    last = "; ".join(f"self.number == {number} {at}" for number in (10, 9, 8))
    assert re.fullmatch(f"{last}; 8 more", line.whys[11])


class Odd(nn.Module):
    @stage("reads")
    def reads(self, x):
        return x + len(os.environ.get("DSLEARN_ODD", ""))  # reads it

    @stage("branches")
    def branches(self, x):
        if x.sum() > 0:  # decides
            return x
        return -x

    @stage("prints")
    def prints(self, x):
        print("here")  # prints
        return -x

    @stage("wide")
    def wide(self, x):
        y = x.double() * 2  # widens
        return y, x.to(torch.float64)  # widens again

    @stage("fails")
    def fails(self, x):
        return x @ x.new_ones(5)

    @stage("sums")
    def sums(self, codes):
        return codes + codes  # computes

    @stage("sometimes")
    def sometimes(self, x):
        return x + 1 if len(x) < 3 or x.sum() > 0 else x

    @stage("given")
    def given(self, x):
        return x


def line_of(comment):
    text = Path(__file__).read_text(encoding="utf-8").splitlines()
    return 1 + next(i for i, line in enumerate(text) if line.endswith(f"# {comment}"))


@pytest.mark.parametrize(
    ("name", "words", "comment"),
    [
        ("reads", "reads DSLEARN_ODD while it is traced", "reads it"),
        ("branches", r"is no single graph.* \(keep it on the device: torch.where", "decides"),
        ("prints", r"is no single graph.* \(move it out of the function, or decide it", "prints"),
        ("wide", "2 errors", "widens"),
        ("sums", "it computes with them", "computes"),
    ],
)
def test_what_cannot_be_compiled_is_refused_at_its_line(name, words, comment):
    x = torch.ones(4)
    x = x.to(torch.float8_e4m3fn) if name == "sums" else x
    with torch.inference_mode(), regions.use("regions"):
        for _ in range(2):  # the second time too
            with pytest.raises(GraphError, match=words) as refused:
                getattr(Odd(), name)(x)
            assert f"region Odd.{name}" in str(refused.value)
            assert f"{HERE}:{line_of(comment)}" in str(refused.value)
    assert lines()[f"Odd.{name}"].graphs == 0


def test_a_mistake_in_the_method_is_told():
    told = pytest.raises(GraphError, match="size")
    with torch.inference_mode(), regions.use("regions"), told as refused:
        Odd().fails(torch.ones(4, 4))
    assert "move it out" not in str(refused.value), "eager code makes the mistake too"


def test_a_later_shape_that_cannot_be_compiled_is_refused_too():
    with torch.inference_mode(), regions.use("regions"):
        assert Odd().sometimes(torch.ones(2)).tolist() == [2, 2]
        with pytest.raises(GraphError, match=r"region Odd.sometimes is no single graph.*test_reg"):
            Odd().sometimes(torch.ones(3))
        assert Odd().sometimes(torch.ones(2)).tolist() == [2, 2]


class Constants:
    @stage("constants")
    def forward(self, x):
        return torch.arange(3), torch.tensor([0.5, float("nan")]), len(x)


def test_a_graph_that_reads_no_tensor():
    with torch.no_grad(), regions.use("regions"), comparing():
        positions, halves, rows = Constants().forward(torch.ones(2))
    assert positions.tolist() == [0, 1, 2] and halves[0] == 0.5 and halves.isnan()[1] and rows == 2


def test_nothing_to_compute_needs_no_graph():
    x = torch.ones(3)
    with torch.inference_mode(), regions.use("regions"):
        assert Odd().given(x) is x and Odd().given(x) is x


def test_gradients_are_refused_not_dropped():
    with regions.use("regions"), pytest.raises(UsageError, match="inference_mode"):
        Stack()(*inputs())
    with regions.use("eager"):
        assert Stack()(*inputs()).requires_grad


@torch.compiler.assume_constant_result
def on_the_chip() -> bool:
    """Decided while tracing: the graphs of another backend are others."""
    return backend.current().name != "cpu"


class Chooses(nn.Module):
    @stage("chooses")
    def chooses(self, x):
        return x * 2 if on_the_chip() else x + 1


def test_each_backend_has_graphs_of_its_own():
    x = torch.zeros(2)
    with torch.inference_mode(), regions.use("regions"):
        for name, expected in (("cpu", 1), ("sim", 0), ("cpu", 1), ("sim", 0)):
            with backend.use(name):
                assert Chooses().chooses(x).tolist() == [expected] * 2
    assert [(line.calls, line.graphs) for line in regions.report()] == [(2, 1), (2, 1)]
