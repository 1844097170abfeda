"""Operations stay whole in graphs: torch.compile, make_fx, functionalisation, opcheck."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch.fx.experimental.proxy_tensor import make_fx

from dslearn import backend, ops
from dslearn.ops.rmsnorm import rmsnorm
from dslearn.ops.swiglu import swiglu
from tests.support.kernels import matrix
from tests.support.ops import add_into, same, times

EPS = 1e-6
each_backend = pytest.mark.parametrize("name", ["cpu", "sim"])


def mlp(x, weight):
    y = rmsnorm(x, weight, EPS)
    plus, minus = times(y + 1)
    return swiglu(plus, minus * 0.5, 1.5) - 1


def compiled(function):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def called(graph):
    return [str(n.target) for n in graph.graph.nodes if n.op == "call_function"]


@each_backend
@pytest.mark.parametrize("no_grad", [False, True])
def test_a_full_graph_gives_the_bytes_of_eager(name, no_grad):
    x, weight = matrix(1, 6, 32), matrix(2, 1, 32)[0]
    with backend.use(name), torch.set_grad_enabled(not no_grad):
        with ops.collect() as eager:
            expected = mlp(x, weight)
        with ops.collect() as taken:
            y = compiled(mlp)(x, weight)
    assert torch.equal(y, expected) and y.abs().max() > 0
    assert taken.counts() == eager.counts()
    assert set(taken.counts()) == {"rmsnorm", "swiglu", "test_times"}


def test_one_graph_serves_whatever_backend_is_in_force_when_it_runs():
    x, weight = matrix(1, 6, 32), matrix(2, 1, 32)[0]
    function = compiled(mlp)
    with ops.collect() as taken:
        for name in ("cpu", "sim", "cpu"):
            with backend.use(name):
                function(x, weight)
    assert taken.counts()["rmsnorm"] == {"twin": 2, "kernel": 1}


@each_backend
@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx_sees_operations_not_their_insides(name, mode):
    x, weight = matrix(1, 6, 32), matrix(2, 1, 32)[0]
    with backend.use(name):
        graph = make_fx(mlp, tracing_mode=mode)(x, weight)
        targets = called(graph)
        assert torch.equal(graph(x, weight), mlp(x, weight))
    assert [t for t in targets if t.startswith("dslearn")] == [
        "dslearn.rmsnorm.default",
        "dslearn.test_times.default",
        "dslearn.swiglu.default",
    ]


def update(cache, rows):
    view = cache[1:3]
    add_into(view, rows)
    add_into(view, rows * 2)
    return cache.sum(1)


@each_backend
def test_what_is_written_in_place_is_functionalised(name):
    rows = matrix(3, 2, 5)
    eager, cache = torch.ones(4, 5), torch.ones(4, 5)
    with backend.use(name):
        expected = update(eager, rows)
        y = compiled(update)(cache, rows)
    assert torch.equal(cache, eager) and torch.equal(y, expected)
    torch.testing.assert_close(cache[1:3], 1 + rows * 3)
    assert (cache[::3] == 1).all(), "other rows changed"


def test_a_graph_knows_that_an_argument_is_written():
    seen = []

    def keep(graph, inputs):
        seen.append(graph)
        return make_boxed_func(graph.forward)

    torch._dynamo.reset()
    function = torch.compile(update, fullgraph=True, backend=aot_autograd(fw_compiler=keep))
    cache = torch.ones(4, 5)
    function(cache, torch.ones(2, 5))
    assert sum("auto_functionalized" in target for target in called(seen[0])) == 2
    assert cache[1:3].eq(4).all() and cache[::3].eq(1).all()


@each_backend
def test_a_compiled_trainer_differentiates_the_twins(name):
    x, weight = matrix(1, 6, 32), matrix(2, 1, 32)[0].requires_grad_()
    with backend.use(name):
        compiled(mlp)(x, weight).sum().backward()
        found, weight.grad = weight.grad, None
        with ops.collect() as taken:
            mlp(x, weight).sum().backward()
    torch.testing.assert_close(found, weight.grad)
    assert found.abs().max() > 0 and taken.counts()["swiglu"] == {"twin": 1}


@each_backend
@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        (rmsnorm, (matrix(1, 3, 8), torch.ones(8), EPS)),
        (rmsnorm, (matrix(1, 8, 3, torch.bfloat16).T, torch.ones(8), EPS)),
        (swiglu, (matrix(1, 3, 8), matrix(2, 3, 8), 1.5)),
        (swiglu, (matrix(1, 3, 8), matrix(2, 3, 8), 1.5, matrix(3, 3, 1))),
        (times, (matrix(1, 3, 8),)),
        (same, (matrix(1, 3, 8),)),
        (add_into, (torch.zeros(2, 3), torch.ones(2, 3))),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_torchs_own_checks_of_an_operation_pass(name, op, arguments):
    with backend.use(name):
        found = torch.library.opcheck(op.overload, arguments)
    assert found and set(found.values()) == {"SUCCESS"}
