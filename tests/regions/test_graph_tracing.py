"""From Dynamo's graph to ATen: what is one object, and what shape it had when."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn

from dslearn.errors import GraphError

pytestmark = pytest.mark.usefixtures("own_graphs")
E4M3 = torch.float8_e4m3fn


def compiled(function):
    torch._dynamo.reset()
    return torch.compile(function, backend="dslearn", fullgraph=True, dynamic=False)


def doubled_and_turned(x):
    y = x * 2
    z = y.detach()
    z.t_()
    return y, z


def input_made_longer(x):
    y = x.detach()
    y.unsqueeze_(0)
    return x + 1, y


def narrow_and_longer(x):
    y = x.to(E4M3)
    y.unsqueeze_(0)
    return (y,)


def narrow_and_turned(x):
    y = x.to(E4M3)
    y.t_()
    return (y,)


def a_part_turned(x):
    y, z = x.to(E4M3).split(1)
    y.t_()
    return y, z


def added_to(x):
    y = (x * 2).detach()
    z = y.detach()
    z.add_(1)
    return y, z


FUNCTIONS = (
    doubled_and_turned,
    input_made_longer,
    narrow_and_longer,
    narrow_and_turned,
    a_part_turned,
    added_to,
)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_shapes_and_values_are_those_of_eager_code(function):
    x = torch.arange(6.0).view(2, 3)
    with torch.no_grad():
        expected, found = function(x.clone()), compiled(function)(x)
    assert x.shape == (2, 3), "the caller's tensor keeps its shape"
    for a, b in zip(expected, found, strict=True):
        assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)
        assert torch.equal(a.float(), b.float())


def test_a_detached_tensor_is_another_object():
    x = torch.ones(3)
    with torch.no_grad():
        assert compiled(lambda x: x.detach())(x) is not x
        y, z = compiled(lambda x: ((y := x * 2), y.detach()))(x)
    assert y is not z and y.data_ptr() == z.data_ptr()


def test_weights_are_cast_by_an_autocast_around_the_call():
    linear, x = nn.Linear(8, 8), torch.randn(2, 8)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected, found = linear(x), compiled(lambda x: linear(x))(x)
    assert found.dtype is torch.bfloat16 and torch.equal(expected, found)


def test_numbers_that_follow_from_shapes_are_numbers():
    def bag(x):
        return F.embedding_bag(torch.tensor([[0, 1]]), x)

    with torch.no_grad():
        assert torch.equal(compiled(bag)(torch.eye(4)), bag(torch.eye(4)))


def test_a_number_that_follows_from_values_is_refused_with_its_line():
    def item(x):
        return x * x.max().item()  # graph: allow data-dependent to see what happens then

    patch = torch._dynamo.config.patch(capture_scalar_outputs=True)
    line = item.__code__.co_firstlineno + 1
    with torch.no_grad(), patch, pytest.raises(Exception, match=f":{line}: ") as refused:
        compiled(item)(torch.ones(3))
    assert isinstance(refused.value.inner_exception, GraphError)
    assert len(str(refused.value.inner_exception).splitlines()) == 1


def test_a_graph_without_inputs():
    def step():
        return torch.ones(4).to(E4M3).float() * 2

    with torch.no_grad():
        assert torch.equal(compiled(step)(), step())
