"""Whole building blocks: softmax, rms_norm, where; dropout and random numbers are not simulated.

Intermediate tiles are fp32, so each result is rounded once.
Source: docs/reference/nki.md, section "High-level functions".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dslearn.sim.isa.activation import activation
from dslearn.sim.isa.copies import memset, tensor_copy, tensor_copy_predicated
from dslearn.sim.isa.elementwise import reciprocal, tensor_tensor
from dslearn.sim.isa.tensor_scalar import tensor_scalar
from dslearn.sim.language import reduce
from dslearn.sim.language.elementwise import unary
from dslearn.sim.language.move import broadcast_to
from dslearn.sim.language.results import FP32, like, new, spread, tile
from dslearn.sim.language.tokens import TOKENS
from dslearn.sim.memory import MemoryRegion
from dslearn.sim.rules import ArgumentError, NotSupportedError
from dslearn.sim.tensor import NkiTensor


def softmax(x: NkiTensor, axis: Any = -1, dtype: Any = None) -> NkiTensor:
    """exp(x - max) / sum(exp(x - max)) over the trailing free dimensions `axis`."""
    x = tile("softmax", "x", x)
    work, total = new(x.shape), reduce.max(x, axis, FP32, keepdims=True)
    tensor_tensor(work, x, spread(total, x.shape), TOKENS["subtract"])
    activation(work, TOKENS["exp"], work)
    total = reduce.sum(work, axis, keepdims=True)
    reciprocal(total, total)
    dst = like(x, dtype)
    tensor_tensor(dst, work, spread(total, x.shape), TOKENS["multiply"])
    return dst


def rms_norm(  # noqa: PLR0913 - the vendor's signature
    x: NkiTensor,
    w: NkiTensor,
    axis: Any,
    n: int,
    epsilon: float = 1e-6,
    dtype: Any = None,
    compute_dtype: Any = None,
) -> NkiTensor:
    """x / sqrt(sum(x^2) / n + epsilon) * w; `w` is [P, F] or [1, F].

    `compute_dtype` is the dtype of the squares and of the normalised x, fp32 unless given.
    """
    x, w = tile("rms_norm", "x", x), tile("rms_norm", "w", w)
    work = new(x.shape, compute_dtype or FP32)
    tensor_tensor(work, x, x, TOKENS["multiply"])
    scale = reduce.sum(work, axis, FP32, keepdims=True)
    tensor_scalar(
        scale, scale, TOKENS["multiply"], 1.0 / n, op1=TOKENS["add"], operand1=float(epsilon)
    )
    scale = unary("rsqrt", scale, FP32)
    tensor_tensor(work, x, spread(scale, x.shape), TOKENS["multiply"])
    dst = like(x, dtype)
    tensor_tensor(dst, work, broadcast_to(w, x.shape), TOKENS["multiply"])
    return dst


def where(condition: NkiTensor, x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """x where `condition` is not 0, else y; x and y are tiles or numbers.

    Raises:
        ArgumentError: a condition that is no tile, or a number for both.
    """
    condition = tile("where", "condition", condition)
    tiles = [v for v in (x, y) if isinstance(v, NkiTensor)]
    if not tiles and dtype is None:
        raise ArgumentError("nl.where of two numbers: give dtype=", rule="arguments")
    dst = new(condition.shape, tiles[0].dtype if dtype is None else dtype)
    _fill(dst, y)
    chosen = x
    if isinstance(x, NkiTensor) and x.dtype != dst.dtype:
        chosen = unary("copy", x, dst.dtype)
    tensor_copy_predicated(dst, chosen, _mask(condition))
    return dst


def _fill(dst: NkiTensor, value: Any) -> None:
    if isinstance(value, NkiTensor):
        tensor_copy(dst, value)
    else:
        memset(dst, value)


def _mask(condition: NkiTensor) -> NkiTensor:
    if condition.dtype in ("uint8", "uint16", "uint32"):
        return condition
    mask = new(condition.shape, "uint8")
    tensor_scalar(mask, condition, TOKENS["not_equal"], 0.0)
    return mask


def _no_random(name: str) -> NotSupportedError:
    return NotSupportedError(
        f"nl.{name}: random numbers are not simulated; pass them to the kernel as an input",
        rule="not-simulated",
    )


def dropout(x: NkiTensor, rate: Any, dtype: Any = None) -> NkiTensor:
    """Not simulated."""
    raise _no_random("dropout")


def rand(
    shape: Sequence[int], dtype: Any, buffer: Any = MemoryRegion.sbuf, name: str = ""
) -> NkiTensor:
    """Not simulated."""
    raise _no_random("rand")


def random_seed(seed: NkiTensor) -> None:
    """Not simulated."""
    raise _no_random("random_seed")
