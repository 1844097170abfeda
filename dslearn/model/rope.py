"""Rotary embedding with interleaved pairs, its inverse, and YaRN.

Shapes: P positions, R rotated dims (the last R of a head), J = R/2 frequencies.
Source: docs/reference/model.md, "RoPE and YaRN"; YaRN is arXiv 2309.00071.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dslearn.config import Yarn
from dslearn.model import chip_attention
from dslearn.model.arith import Arith


def frequencies(rope_dims: int, theta: float, yarn: Yarn | None) -> Tensor:
    """Angle per position of each pair, fp32 [J]; with YaRN the slow pairs turn `factor` slower."""
    exponents = torch.arange(0, rope_dims, 2, dtype=torch.float32, device="cpu") / rope_dims
    freqs = 1.0 / torch.pow(torch.tensor(theta, dtype=torch.float32, device="cpu"), exponents)
    if yarn is None:
        return freqs

    def pair_that_turns(turns: float) -> float:
        length = yarn.original_max_position_embeddings / (2 * math.pi * turns)
        return rope_dims * math.log(length) / (2 * math.log(theta))

    low = max(math.floor(pair_that_turns(yarn.beta_fast)), 0)
    high = min(math.ceil(pair_that_turns(yarn.beta_slow)), rope_dims - 1)
    index = torch.arange(rope_dims // 2, dtype=torch.float32, device="cpu")
    ramp = ((index - low) / max(high - low, 0.001)).clamp(0, 1)
    return freqs / yarn.factor * ramp + freqs * (1 - ramp)


class RopeTable:
    """cos and sin by absolute position [P, R], each pair's value twice, grown on demand.

    The sine is signed for `rotate`: (-sin, sin) per pair.

    The angle is the fp32 product position * frequency, as in the released code: exact angles
    differ in the cosine by 1e-3 at position 65,535.
    """

    def __init__(self, rope_dims: int, theta: float, yarn: Yarn | None) -> None:
        self.freqs = frequencies(rope_dims, theta, yarn)
        self._cos = self._sin = torch.empty(0, rope_dims, device="cpu")

    def reserve(self, length: int) -> None:
        """Make positions 0..length-1 available."""
        if length > len(self._cos):
            size = 1 << (max(length, 256) - 1).bit_length()
            positions = torch.arange(size, dtype=torch.float32, device="cpu")
            angles = positions[:, None] * self.freqs
            sin = angles.sin()
            self._cos = angles.cos().repeat_interleave(2, -1)
            self._sin = torch.stack((-sin, sin), -1).flatten(-2)

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin, each [*positions.shape, R]; positions are int64 and already reserved."""
        return self._cos[positions], self._sin[positions]

    def turn(self, position: int) -> NDArray[np.complex64]:
        """cos + i sin of one position [J], already reserved or not."""
        self.reserve(position + 1)
        turn = np.empty(len(self.freqs), np.complex64)
        turn.real = self._cos[position, ::2].numpy()
        turn.imag = self._sin[position, 1::2].numpy()
        return turn


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, inverse: bool = False) -> Tensor:
    """Turn the last R dims of x [..., K]: (a, b) -> (a cos - b sin, b cos + a sin) per pair.

    cos and sin are rows of `RopeTable.at` and broadcast against x[..., :R]; `inverse` turns back.
    """
    dims = cos.shape[-1]
    turned = x[..., -dims:]
    swapped = turned.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    a, b = turned * cos, swapped * sin
    turned = a - b if inverse else a + b
    return torch.cat((x[..., :-dims], turned), dim=-1)


def turned(
    heads: Tensor, cos: Tensor, sin: Tensor, arith: Arith, *, inverse: bool = False
) -> Tensor:
    """Heads [B, T, H, K] turned by cos and sin [B, T, R], and rounded."""
    if chip_attention.serves(arith, heads):
        return arith.round(chip_attention.rotate(heads, cos, sin, inverse=inverse))
    return arith.round(rotate(heads, cos.unsqueeze(-2), sin.unsqueeze(-2), inverse=inverse))
