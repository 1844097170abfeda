"""Reductions over the trailing free dimensions: sum, max, min, mean, prod, var, all.

One rounding, at the end. `axis` is an int or a tuple of ints: the last free dimensions, never 0.
Source: docs/reference/nki.md, section "High-level functions".
"""

from __future__ import annotations

from math import prod as product
from typing import Any

from dslearn.sim.isa.elementwise import tensor_tensor
from dslearn.sim.isa.reductions import tensor_reduce
from dslearn.sim.isa.tensor_scalar import tensor_scalar
from dslearn.sim.language.results import FP32, axes_of, new, reduced, spread, tile
from dslearn.sim.language.tokens import TOKENS
from dslearn.sim.tensor import NkiTensor


def _reduce(name: str, op: str, x: Any, axis: Any, dtype: Any, keepdims: bool) -> NkiTensor:
    x = tile(name, "x", x)
    axes = axes_of(name, x, axis)
    dst = new(reduced(x, axes, keepdims), x.dtype if dtype is None else dtype)
    tensor_reduce(dst, TOKENS[op], x, axis=axes, keepdims=keepdims)
    return dst


def sum(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """The sum over `axis`."""
    return _reduce("sum", "add", x, axis, dtype, keepdims)


def max(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """The maximum over `axis`."""
    return _reduce("max", "maximum", x, axis, dtype, keepdims)


def min(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """The minimum over `axis`."""
    return _reduce("min", "minimum", x, axis, dtype, keepdims)


def prod(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """The product over `axis`."""
    return _reduce("prod", "multiply", x, axis, dtype, keepdims)


def all(x: NkiTensor, axis: Any, dtype: Any = None) -> NkiTensor:
    """1 where no element over `axis` is 0."""
    return _reduce("all", "logical_and", x, axis, dtype, False)


def mean(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """The mean over `axis`: fp32 sum, times the fp32 number nearest to 1/n."""
    total = _reduce("mean", "add", x, axis, FP32, keepdims)
    dst = new(total.shape, x.dtype if dtype is None else dtype)
    tensor_scalar(dst, total, TOKENS["multiply"], total.size / x.size)
    return dst


def var(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """The variance (mean square distance from the mean); reduced dimensions always stay, as 1."""
    centre = mean(x, axis, FP32, keepdims=True)
    distance = new(x.shape)
    tensor_tensor(distance, x, spread(centre, x.shape), TOKENS["subtract"])
    tensor_tensor(distance, distance, distance, TOKENS["multiply"])
    axes = axes_of("var", x, axis)
    total = _reduce("var", "add", distance, axes, FP32, True)
    dst = new(total.shape, x.dtype if dtype is None else dtype)
    tensor_scalar(dst, total, TOKENS["multiply"], 1.0 / product(x.shape[a] for a in axes))
    return dst
