"""The name of a graph: equal for what makes the same graph, and for nothing else."""

from __future__ import annotations

import functools
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from dslearn import regions
from dslearn.model.stage import stage
from dslearn.regions import key
from tests.support.captured import captured


def key_for(function, *given, flags=()):
    return key.key_of(captured(function, *given), flags)


class Scaled(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4))
        self.scale = scale

    @stage("scaled")
    def forward(self, x):
        return x @ self.weight * self.scale


def test_keys_tell_apart_what_makes_other_graphs():
    x = torch.ones(4, 4)
    pool = torch.zeros(4, 8)

    def both(a, b):
        return a + 1, b + 1

    keys = [
        key_for(Scaled(2.0), x),
        key_for(Scaled(3.0), x),
        key_for(Scaled(2.0), x[:2]),
        key_for(Scaled(2.0), torch.ones(4, 8)[:, ::2]),
        key_for(Scaled(2.0).to(torch.bfloat16), x.to(torch.bfloat16)),
        key_for(Scaled(2.0), x, flags=("-O1",)),
        key_for(both, pool[:, :4], torch.zeros(4, 8)[:, :4]),
        key_for(both, pool[:, :4], pool[:, 4:]),
        key_for(lambda a: torch.ops.aten.relu(a), x),
        key_for(lambda a: torch.ops.aten.sigmoid(a), x),
    ]
    assert len(set(keys)) == len(keys)


class Products(nn.Module):
    @stage("products")
    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            exact = x @ x
        return torch.tensor([1.5, 2.5]), exact, x @ x


def test_what_torch_is_set_to_is_in_the_key(own_graphs):
    """The default dtype and autocast are in no node of a captured graph, and decide its dtypes."""
    narrow, x, found = torch.bfloat16, torch.ones(2, 2), []
    with torch.inference_mode(), regions.use("regions"):
        for default, cast in ((narrow, False), (torch.float32, True), (torch.float32, False)):
            torch.set_default_dtype(default)
            try:
                with torch.autocast("cpu", narrow, enabled=cast):
                    found.append([one.dtype for one in Products()(x)])
            finally:
                torch.set_default_dtype(torch.float32)
    plain = [torch.float32] * 3
    assert found == [[narrow, *plain[1:]], [*plain[:2], narrow], plain]


def opened(scale):
    @torch._dynamo.allow_in_graph
    def times(x):
        return x * scale

    return lambda x: times(x)


def test_an_opened_function_is_told_by_what_it_holds():
    x, held = torch.ones(2), np.float32(2)
    doubled, again, tripled = (key_for(opened(n), x) for n in (2, 2, 3))
    assert doubled == again != tripled
    # What is no plain value may hide anything: never the same as any other.
    assert key_for(opened(held), x) != key_for(opened(held), x)


FACTOR = 2


def scaled_by_a_global(x):
    return x * FACTOR


@torch._dynamo.allow_in_graph
def through_a_helper(x):
    return torch.relu(scaled_by_a_global(x))


def test_an_opened_function_is_told_by_the_globals_that_it_reads(monkeypatch):
    x, home = torch.ones(2), sys.modules[__name__]

    def keys():
        return [key_for(lambda a: through_a_helper(a), x) for _ in range(2)]

    doubled, again = keys()
    monkeypatch.setattr(home, "FACTOR", 3)
    tripled = keys()[0]
    monkeypatch.setattr(home, "FACTOR", np.float32(2))  # may hide anything
    assert doubled == again != tripled
    assert len(set(keys())) == 2


ACT = nn.LeakyReLU(0.1)


def times(number):
    """A wrapper with the text of what it wraps."""

    def around(function):
        @functools.wraps(function)
        def wrapped(x):
            return function(x) * number

        return wrapped

    return around


def with_a_number(function, number):
    function.number = number
    return function


def reads_its_own_number(x):
    return x * reads_its_own_number.number


def imports_a_number(x):
    from math import pi  # noqa: PLC0415 - what this is about

    return x * pi


OPENED = {  # two functions that are not the same, or may not be
    "a global in nested code": lambda n: (setattr(HOME, "FACTOR", n), lambda x: inner(x))[1],
    "a module of torch": lambda n: (setattr(HOME, "ACT", nn.LeakyReLU(n)), lambda x: ACT(x))[1],
    "lambdas on one line": lambda n: ((lambda x: x + 1), (lambda x: x + 2))[n - 2],
    "a wrapper": lambda n: times(n)(torch.relu),
    "an attribute": lambda n: with_a_number(reads_its_own_number, n),
    "an import": lambda n: imports_a_number,
}
HOME = sys.modules[__name__]


def inner(x):
    return (lambda y: y * FACTOR)(x)


@pytest.mark.parametrize("made", OPENED.values(), ids=OPENED)
def test_opened_functions_that_differ_have_different_keys(made, monkeypatch):
    for name in ("FACTOR", "ACT"):
        monkeypatch.setattr(HOME, name, getattr(HOME, name))
    keys = []
    for number in (2, 3):
        function = torch.compiler.allow_in_graph(made(number))
        keys.append(key_for(lambda x, function=function: function(x), torch.ones(2)))
    assert keys[0] != keys[1]


def test_an_operation_that_is_made_of_others_is_like_no_other():
    with torch.library._scoped_library("key_test", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeImplicitAutograd")
        first, second = (key_for(torch.ops.key_test.twice, torch.ones(2)) for _ in range(2))
    assert first != second


def test_keys_do_not_depend_on_names_or_weights():
    x = torch.ones(4, 4)
    other = Scaled(2.0)
    other.weight.data += 1
    assert key_for(Scaled(2.0), x) == key_for(other, x)

    def one(a, b):
        first = a * b
        return first + a

    def two(left, right):
        return left * right + left

    assert key_for(one, x, x + 1) == key_for(two, x, x + 1)


def test_an_edited_kernel_helper_is_another_key(tmp_path):
    package = Path(key.__file__).parents[1]
    copy = tmp_path / "package"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    before = key.digest_of_sources(copy)
    assert before == key.digest_of_sources(package)
    helper = copy / "kernels" / "tiles.py"
    helper.write_text(helper.read_text() + "# edited\n")
    key.digest_of_sources.cache_clear()
    assert key.digest_of_sources(copy) != before
