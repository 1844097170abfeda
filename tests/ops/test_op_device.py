"""On `neuron` an operation is the vendor's `wrap_nki`: a fake with its contract stands in."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func

from dslearn import backend, ops
from dslearn.ops import launch
from dslearn.ops.registry import Op
from dslearn.ops.rmsnorm import rmsnorm as on_this_machine
from dslearn.ops.swiglu import swiglu as plain_swiglu
from tests.support import neuron
from tests.support.kernels import bits, matrix
from tests.support.ops import add_into as plain_add_into
from tests.support.ops import times as plain_times

PARTS = ("twin", "fake", "kernel", "takes", "grid", "adapt")


@pytest.fixture
def declared(monkeypatch, request):
    """Declares an operation again, as it is declared where the vendor's package is."""
    neuron.pretend(monkeypatch)
    monkeypatch.setattr(launch, "_wrapped", {})
    test = request.node.name.translate({ord(c): "_" for c in "[]-"})

    def again(op, tag="", **changes):
        schema = f"on_{test}_{op.name}{tag}" + op.schema[op.schema.index("(") :]
        return Op(schema, **({part: getattr(op, part) for part in PARTS} | changes))

    return again


def test_the_kernel_is_launched_on_a_tuple_with_the_simulators_bytes(declared):
    op = declared(on_this_machine)
    x, weight = matrix(1, 5, 48, torch.bfloat16), matrix(2, 1, 48)[0]
    with backend.use("neuron"), ops.collect() as taken:
        y = op(x, weight, 1e-6)
    with backend.use("sim"):
        expected = on_this_machine(x, weight, 1e-6)
    assert torch.equal(bits(y), bits(expected)) and y.float().abs().max() > 0
    assert [(len(neuron.KERNELS) - 1, (2,))] == neuron.LAUNCHES
    assert taken.counts() == {op.name: {"kernel": 1}}


def test_the_contract_of_the_fake_is_the_vendors(declared):
    caller = neuron.NKIHOPCaller(on_this_machine.kernel)
    with pytest.raises(TypeError, match="not iterable"):
        caller[2]
    with pytest.raises(AttributeError, match="func"):
        neuron.NKIHOPCaller(lambda x: x)
    assert neuron.NKIHOPCaller(on_this_machine.kernel).index == caller.index + 1


def test_a_kernel_is_wrapped_once_whatever_uses_it(declared):
    before = len(neuron.KERNELS)
    one, two = declared(on_this_machine, grid=1), declared(on_this_machine, "_two", grid=(2,))
    assert len(neuron.KERNELS) == before + 1
    with backend.use("neuron"):
        for op in (one, two, two):
            op(torch.ones(4, 8), torch.ones(8), 1e-6)
    assert [(before, (1,)), (before, (2,)), (before, (2,))] == neuron.LAUNCHES


def test_other_backends_stay_available_beside_a_device(declared):
    op = declared(on_this_machine)
    with ops.collect() as taken:
        for name in ("cpu", "sim"):
            with backend.use(name):
                torch.compile(op, fullgraph=True, backend="aot_eager")(
                    torch.ones(4, 8), torch.ones(8), 1e-6
                )
    assert taken.counts() == {op.name: {"twin": 1, "kernel": 1}} and not neuron.LAUNCHES


def test_functionalisation_is_torchs_own_on_other_backends(declared):
    op = declared(plain_add_into)

    def function(cache, rows):
        op(cache, rows)
        return cache * 2

    with backend.use("sim"):
        cache = torch.ones(2, 3)
        y, targets = graph_of(function, cache, torch.ones(2, 3))
    assert cache.eq(2).all() and y.eq(4).all() and not neuron.LAUNCHES
    assert sum("auto_functionalized" in target for target in targets) == 1


def test_absent_arguments_at_the_end_are_not_passed(declared):
    op = declared(plain_swiglu)
    gate, up = matrix(1, 3, 8), matrix(2, 3, 8)
    with backend.use("neuron"):
        plain, weighted = op(gate, up, 1.5), op(gate, up, 1.5, torch.full((3, 1), 2.0))
    torch.testing.assert_close(weighted, plain * 2)
    assert launch.given((1, None, 2, None, None)) == (1, None, 2)


def graph_of(function, *arguments):
    """Results, and the calls in the graph that AOTAutograd hands to a compiler."""
    seen = []

    def keep(graph, inputs):
        seen.append(graph)
        return make_boxed_func(graph.forward)

    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend=aot_autograd(fw_compiler=keep))
    result = compiled(*arguments)
    return result, [str(n.target) for n in seen[0].graph.nodes if n.op == "call_function"]


def test_a_compiled_graph_holds_the_kernel_and_not_the_operation(declared):
    op, pair = declared(on_this_machine), declared(plain_times)
    x, weight = matrix(1, 5, 48), matrix(2, 1, 48)[0]

    def function(x, weight):
        return pair(op(x * 2, weight, 1e-6), 0.5)[1] + 1

    with backend.use("sim"):
        expected = function(x, weight)
    with backend.use("neuron"):
        y, targets = graph_of(function, x, weight)
    assert torch.equal(y, expected) and y.abs().max() > 0
    assert targets.count("nki_kernel_wrapper") == 2, targets
    assert not [t for t in targets if "dslearn" in t]


def test_what_a_kernel_writes_is_functionalised_by_the_vendors_wrapper(declared):
    op = declared(plain_add_into)

    def function(cache, rows):
        op(cache, rows)
        return cache * 2

    cache, rows = torch.ones(4, 5), matrix(3, 4, 5)
    with backend.use("neuron"):
        y, targets = graph_of(function, cache, rows)
    assert torch.equal(cache, 1 + rows) and torch.equal(y, cache * 2)
    assert "nki_kernel_wrapper" in targets and not [t for t in targets if "dslearn" in t]


def test_gradients_pass_through_the_twin_there_too(declared):
    op, weight = declared(on_this_machine), torch.ones(8, requires_grad=True)
    with backend.use("neuron"):
        op(matrix(1, 2, 8), weight, 1e-6).sum().backward()
    assert weight.grad is not None and not neuron.LAUNCHES
