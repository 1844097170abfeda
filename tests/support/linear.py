"""What tests of quantised products share: weights with known values, exact products, bounds."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch
from torch import Tensor

WHOLE = (0x00, 0x38, 0x40, 0x44, 0x48, 0x4C)  # e4m3 codes of 0, 1, 2, 3, 4, 6


def rng(*seed: int) -> np.random.Generator:
    return np.random.default_rng(list(seed))


def whole_rows(m: int, k: int, seed: int = 0) -> Tensor:
    """Whole numbers from -4 to 4 in bf16 [m, k]."""
    return torch.from_numpy(rng(1, m, k, seed).integers(-4, 5, (m, k))).to(torch.bfloat16)


def rows(m: int, k: int, seed: int = 0) -> Tensor:
    """Normal values in bf16 [m, k]."""
    values = rng(2, m, k, seed).integers(-1000, 1000, (4, m, k)).sum(0)
    return torch.from_numpy(values / 1000).to(torch.bfloat16)


def fp8(n: int, k: int, tile: int, whole: bool, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Codes [n, k] up to 240 and scale bytes of their tiles; `whole`: sums are exact in fp32."""
    draw = rng(3, n, k, tile, seed)
    codes = draw.choice(WHOLE, (n, k)) if whole else draw.integers(0, 0x78, (n, k))
    signed = (codes | draw.choice([0, 0x80], (n, k))).astype(np.uint8)
    low, high = (126, 130) if whole else (100, 140)
    grid = draw.integers(low, high, (-(-n // tile), -(-k // tile)), dtype=np.uint8)
    return torch.from_numpy(signed), torch.from_numpy(grid)


def fp4(n: int, k: int, spread: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Packed codes [n, k/2] and scale bytes [n, k/32], all within `spread` binades of a row."""
    draw = rng(4, n, k, spread, seed)
    packed = draw.integers(0, 256, (n, k // 2), dtype=np.uint8)
    base = draw.integers(110, 130 - spread, (n, 1))
    byte = base + draw.integers(0, spread + 1, (n, k // 32))
    return torch.from_numpy(packed), torch.from_numpy(byte.astype(np.uint8))


def fp8_values(codes: Tensor, scale: Tensor, tile: int) -> np.ndarray:
    """float64 [n, k], by ml_dtypes in the reading of trn2."""
    n, k = codes.shape
    values = codes.numpy().view(ml_dtypes.float8_e4m3).astype(np.float64)
    power = np.exp2(scale.numpy().astype(np.float64) - 127)
    return values * np.repeat(np.repeat(power, tile, 0), tile, 1)[:n, :k]


def fp4_values(packed: Tensor, scale: Tensor) -> np.ndarray:
    """float64 [n, k], by ml_dtypes."""
    both = np.stack([packed.numpy() & 15, packed.numpy() >> 4], -1).reshape(len(packed), -1)
    values = both.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    return values * np.repeat(np.exp2(scale.numpy().astype(np.float64) - 127), 32, 1)


def product(x: Tensor, weight: np.ndarray) -> np.ndarray:
    """x · Wᵀ in float64 [m, n]."""
    exact: np.ndarray = x.double().numpy() @ weight.T
    return exact


def check_close(y: Tensor, x: Tensor, weight: np.ndarray) -> None:
    """y (fp32) is a sum in some order: each of K additions errs by half a step of fp32 at most."""
    k = x.shape[1]
    size = np.abs(x.double().numpy()) @ np.abs(weight).T
    wrong = np.abs(y.double().numpy() - product(x, weight)) - k * 2.0**-24 * size
    assert (wrong <= 0).all(), f"{wrong.max():g} beyond the bound at {wrong.argmax()}"
    assert y.dtype == torch.float32 and float(y.abs().max()) > 0
