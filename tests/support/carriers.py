"""Graphs of ATen operations, carried and run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from dslearn.regions.carriers import Carried, carry

NARROW = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu)
Function = Callable[..., Any]


def graph_of(function: Function, *inputs: Tensor) -> fx.GraphModule:
    """The ATen graph of a function, traced on fake tensors."""
    return make_fx(function, tracing_mode="fake")(*inputs)


def run_carried(carried: Carried, *inputs: Tensor) -> list[Tensor]:
    """Run a carried graph; what goes in and comes out has the dtypes that it had before."""
    given = [
        x.view(torch.uint8) if kind else x for x, kind in zip(inputs, carried.inputs, strict=True)
    ]
    with torch.no_grad():
        out = carried.module(*given)
    out = [out] if isinstance(out, Tensor) else list(out)
    return [x.view(kind) if kind else x for x, kind in zip(out, carried.outputs, strict=True)]


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have one dtype, shape and arrangement, and the same bytes."""
    alike = (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
    flat = [x.contiguous().reshape(-1).view(torch.uint8) for x in (a, b)]
    return alike and torch.equal(*flat)


def expect_same(function: Function, *inputs: Tensor) -> Carried:
    """The carried graph gives the bytes of the function itself, and leaves the same behind."""
    carried = carry(graph_of(function, *[x.clone() for x in inputs]))
    mine, theirs = [x.clone() for x in inputs], [x.clone() for x in inputs]
    expected = function(*theirs)
    expected = [expected] if isinstance(expected, Tensor) else expected
    found = run_carried(carried, *mine)
    assert len(found) == len(expected)
    for a, b in zip((*found, *mine), (*expected, *theirs), strict=True):
        assert same_bits(a, b), (a, b)
    values = [node.meta.get("val") for node in carried.module.graph.nodes]
    assert not {x.dtype for x in values if isinstance(x, Tensor)} & set(NARROW)
    return carried
