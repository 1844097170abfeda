"""The mark on methods: nothing without a runner, the runner's answer with one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dslearn.model.stage import install, stage


class Half(nn.Module):
    @stage("half")
    def forward(self, x, *, scale=2.0):
        """Half of it."""
        return self.inner(x) * scale

    @stage("inner")
    def inner(self, x):
        return x + 1


@pytest.fixture
def seen():
    calls = []

    def runner(mark, owner, args, kwargs):
        calls.append((mark.stage, type(owner).__name__, len(args), sorted(kwargs), mark.whole))
        return mark.method(owner, *args, **kwargs)

    former = install(runner)
    yield calls
    install(former)


def test_a_mark_does_nothing_by_itself():
    assert Half()(torch.ones(2), scale=3.0).tolist() == [6, 6]
    assert Half.forward.__name__ == "forward" and Half.forward.__doc__ == "Half of it."


def test_a_runner_is_called_instead(seen):
    assert Half()(torch.ones(2), scale=3.0).tolist() == [6, 6]
    assert seen == [("half", "Half", 1, ["scale"], False), ("inner", "Half", 1, [], False)]


def test_while_tracing_marks_do_nothing_and_guard_nothing(seen):
    graphs = []

    def backend(module, inputs):
        graphs.append(module)
        return module.forward

    torch._dynamo.reset()
    half = Half()
    compiled = torch.compile(lambda x: half(x), backend=backend, fullgraph=True)
    assert compiled(torch.ones(2)).tolist() == [4, 4]
    former = install(None)
    compiled(torch.ones(2))
    install(former)
    assert len(graphs) == 1 and not seen


def test_a_whole_step_says_so(seen):
    class Step:
        @stage("step", whole=True)
        def run(self, x):
            return x

    assert Step().run(5) == 5
    assert seen == [("step", "Step", 1, [], True)]
