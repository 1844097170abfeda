"""Quantised weights for tests of kernels: every code, scales near 1, and what they stand for."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dslearn.formats import rows, tiles

Weight = tuple[Tensor, Tensor]  # codes and scale bytes, as in a checkpoint


def fp8(seed: int, outputs: int, inputs: int, low: int = 114, high: int = 119) -> Weight:
    """Codes [N, K] up to 240 of both signs, scale bytes low..high of 32 x 32 tiles."""
    draw = np.random.default_rng(seed)
    codes = draw.integers(0, 0x78, (outputs, inputs), np.uint8)
    codes |= draw.integers(0, 2, codes.shape, np.uint8) << 7
    grid = draw.integers(low, high + 1, (-(-outputs // 32), -(-inputs // 32)), np.uint8)
    return torch.from_numpy(codes), torch.from_numpy(grid)


def whole_fp8(seed: int, outputs: int, inputs: int) -> Weight:
    """As `fp8`, but small whole numbers times 1, 2 or 4: fp32 sums are exact in any order."""
    draw = np.random.default_rng(seed)
    values = torch.from_numpy(draw.integers(-3, 4, (outputs, inputs)).astype(np.float32))
    codes = values.to(torch.float8_e4m3fn).view(torch.uint8)
    return codes, fp8(seed, outputs, inputs, 127, 129)[1]


def fp4(seed: int, outputs: int, inputs: int, low: int = 119, high: int = 125) -> Weight:
    """Packed e2m1 codes [N, K/2], all of them, and scale bytes low..high per 32 inputs."""
    draw = np.random.default_rng(seed)
    packed = draw.integers(0, 256, (outputs, inputs // 2), np.uint8)
    scale = draw.integers(low, high + 1, (outputs, inputs // 32), np.uint8)
    return torch.from_numpy(packed), torch.from_numpy(scale)


def of_fp8(weight: Weight) -> Tensor:
    """Its values in double precision, [N, K]."""
    return tiles.dequantize(*weight).double()


def of_fp4(weight: Weight) -> Tensor:
    """Its values in double precision, [N, K]."""
    return rows.dequantize_fp4(*weight).double()


def whole_rows(seed: int, *shape: int, largest: int = 3) -> Tensor:
    """bf16 whole numbers up to `largest`, of both signs."""
    draw = np.random.default_rng(seed)
    return torch.from_numpy(draw.integers(-largest, largest + 1, shape)).to(torch.bfloat16)


def near(y: Tensor, exact: Tensor, size: Tensor) -> bool:
    """Whether bf16 y is exact up to one rounding and fp32 sums of terms that add up to `size`."""
    error = (y.double() - exact).abs()
    return bool((error <= 2.0**-8 * exact.abs() + 2e-6 * size).all())
