"""Bounds of integers hold for the values that a graph really computes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dslearn.regions.lint.origin import Origin
from dslearn.regions.lint.place import of_caller
from dslearn.regions.lint.ranges import bounds
from dslearn.regions.lint.record import Recorder
from dslearn.regions.lint.trace import Trace

STEPS = {
    "add": lambda x, n: x + n,
    "sub": lambda x, n: n - x,
    "mul": lambda x, n: x * n,
    "neg": lambda x, n: -x,
    "mod": lambda x, n: x % (abs(n) + 1),
    "div": lambda x, n: x // (abs(n) + 1),
    "down": lambda x, n: x // -(abs(n) + 1),
    "and": lambda x, n: x & abs(n),
    "right": lambda x, n: x >> (abs(n) % 5),
    "left": lambda x, n: x << (abs(n) % 5),
    "clamp": lambda x, n: x.clamp(min=n),
    "both": lambda x, n: x.clamp(-abs(n), abs(n) + 1),
    "max": lambda x, n: torch.maximum(x, torch.full_like(x, n)),
    "square": lambda x, n: x * x,
    "cumsum": lambda x, n: x.cumsum(-1),
    "sum": lambda x, n: x.sum(-1, keepdim=True).expand(x.shape),
    "prod": lambda x, n: (x > n).long().cumprod(-1) - (x < n).long().prod(),
    "signs": lambda x, n: x.clamp(-1, 1).cumprod(-1),
    "product": lambda x, n: x @ (x.T + n) @ x,
    "dot": lambda x, n: x + torch.dot(x[0], x[1]),
    "where": lambda x, n: torch.where(x > n, x, n),
    "cat": lambda x, n: torch.cat((x, x + n), -1),
    "bytes": lambda x, n: x.to(torch.uint8).long(),
    "sort": lambda x, n: x.sort(-1).indices,
    "arg": lambda x, n: x.argmax(-1, keepdim=True).expand(x.shape),
    "abs": lambda x, n: x.abs(),
    "alpha": lambda x, n: torch.add(x, x, alpha=n),
    "flip": lambda x, n: x.flip(-1)[..., :3],
}


def traced(function):
    """The bounds of what `function()` computes, and the result."""
    trace = Trace()
    with Recorder(trace.graph, of_caller, lambda tensor: Origin()):
        result = function()
    return bounds(trace)[trace.operations[-1]], result


@given(st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(-40, 40)), max_size=4))
def test_no_value_lies_outside_its_bounds(steps):
    def program():
        x = torch.arange(-6, 8).view(2, 7)
        for name, number in steps:
            x = STEPS[name](x, number)
        return x + 0

    found, result = traced(program)
    if found is not None:
        assert found[0] <= result.min() and result.max() <= found[1], (steps, found, result)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda: torch.arange(5) * 3 + 1, (1, 13)),
        (lambda: torch.arange(2, 9) - torch.arange(7), (-4, 8)),
        (lambda: torch.rand(4, 9).argmax(), (0, 35)),
        (lambda: torch.rand(9).topk(2).indices * 1, (0, 8)),
        (lambda: (torch.rand(9) > 0.5).long().cumsum(0), (0, 9)),
        (lambda: torch.randint(99, (3,)).remainder(7), (0, 6)),
        (lambda: torch.randint(99, (3,)) + 1, None),
        (lambda: torch.zeros(3, dtype=torch.int64) + 2**40, (2**40, 2**40)),
    ],
)
def test_bounds_are_as_narrow_as_one_would_say(function, expected):
    assert traced(function)[0] == expected
