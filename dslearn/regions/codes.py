"""Decoding and encoding 8-bit floats by tables, for graphs that hold their bytes.

Both tables are torch's own casts, asked once: a table therefore gives the bits of the cast, NaN,
saturation and ties included. Source: docs/regions.md, "Carriers".
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

INFINITY = 0x7F800000  # its bits in fp32


class Encoding(NamedTuple):
    """How |x| becomes a code: count the bounds that it reaches, look that up.

    Attributes:
        bounds: fp32 [n], ascending: where the code of a positive number changes.
        codes: uint8 [2 * (n + 2)]: the code by count, NaN last; first for +, then for -.
    """

    bounds: Tensor
    codes: Tensor


@cache
def decoding(kind: torch.dtype, to: torch.dtype) -> Tensor:
    """[256] of dtype `to`: the value of every code of `kind`."""
    return torch.arange(256, dtype=torch.uint8).view(kind).to(to)


@cache
def encoding(kind: torch.dtype) -> Encoding:
    """The tables for fp32 -> `kind`.

    A cast is monotone, so each of its steps is one number, which bisection over the bit patterns
    of positive fp32 finds exactly.
    """
    wanted = torch.arange(1, 256, dtype=torch.int32)
    low, high = torch.zeros_like(wanted), torch.full_like(wanted, INFINITY)
    while bool((low < high).any()):
        middle = low + (high - low) // 2
        reached = _code(middle.view(torch.float32), kind) >= wanted
        high, low = torch.where(reached, middle, high), torch.where(reached, low, middle + 1)
    exists = _code(high.view(torch.float32), kind) >= wanted
    bounds = high[exists].unique().view(torch.float32)
    steps = torch.cat((torch.zeros(1), bounds, torch.tensor([torch.nan])))
    return Encoding(bounds, torch.cat((_code(steps, kind), _code(-steps, kind))).to(torch.uint8))


def _code(x: Tensor, kind: torch.dtype) -> Tensor:
    return x.to(kind).view(torch.uint8).int()
