"""Modelled times of the expert and projection kernels at the released sizes, beside the HBM limit.

    python benchmarks/expert_kernels.py [rows ...]      # 1 and 6 rows

Two cores, without launch. Nothing is measured: see docs/performance.md. The limit is the time that
the weights alone take from HBM at 725 GB/s, which is what the two cores of a stack share.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

import dslearn.kernels  # noqa: F401 - decides which nki runs
from dslearn.kernels.engram_kv import engram_kv
from dslearn.kernels.experts import experts
from dslearn.kernels.fp4_gated import fp4_active, fp4_gated
from dslearn.kernels.grouped import grouped
from dslearn.kernels.plain_linear import plain_linear
from dslearn.kernels.shared_expert import shared_expert
from dslearn.kernels.widened_active import widened_active
from dslearn.sim import cost

Case = tuple[str, Any, tuple[Any, ...], int]  # title, kernel, arguments, bytes of weights
HIDDEN, INNER, EXPERTS = 5120, 2304, 6
DRAW = np.random.default_rng(0)


def codes(*shape: int) -> NDArray[np.uint8]:
    """Finite e4m3 codes."""
    return DRAW.integers(0, 0x78, shape, np.uint8)


def scales(*shape: int) -> NDArray[np.uint8]:
    """Scale bytes that keep sums small."""
    return DRAW.integers(110, 115, shape, np.uint8)


def bf16(*shape: int) -> NDArray[Any]:
    """Normal values."""
    return DRAW.standard_normal(shape, np.float32).astype(ml_dtypes.bfloat16)


def listed(active: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The list of experts and how many are active."""
    return np.arange(EXPERTS, dtype=np.int32)[:, None], np.array([[active]], np.int32)


def projections(rows: int) -> Iterator[Case]:
    """The projections of Engram, of the output and of the router, and the shared expert."""
    weight, scale = codes(2, 128, 48, 12800), scales(2, 4, 400, 48)
    x = codes(rows, 6144), scales(rows, 192)
    yield "engram_kv 6144 x 25600", engram_kv, (*x, weight, scale), weight.size + scale.size
    weight, scale = codes(8, 1, 128, 32, 1024), scales(8, 1, 4, 32, 32)
    x = bf16(rows, 8, 4096)
    yield "grouped fp8 8 x 4096 x 1024", grouped, (x, weight, scale), weight.size + scale.size
    weight = bf16(8, 1, 128, 32, 1024)
    yield "grouped bf16 8 x 4096 x 1024", grouped, (x, weight), weight.nbytes
    weight = bf16(128, 4, HIDDEN // 128, 128)  # placed for two cores: an even number of tiles
    x = bf16(rows, HIDDEN)
    yield "plain_linear bf16 5120 x 384", plain_linear, (x, weight, 384), weight.nbytes
    parts = (
        codes(2, 128, HIDDEN // 128, INNER),
        scales(2, 4, INNER // 32, HIDDEN // 128),
        codes(2, INNER // 2, HIDDEN),
        scales(2, INNER // 64, HIDDEN // 32),
    )
    size = sum(part.size for part in parts)
    yield "shared_expert", shared_expert, (x, *parts, 10.0), size


def routed(rows: int) -> Iterator[Case]:
    """The routed experts, by the number of active ones."""
    factor = np.float32(2.0**-12)
    parts = (
        codes(EXPERTS, 2, 128, HIDDEN // 128, INNER),
        np.full((EXPERTS, 2, INNER // 2, 2), factor),
        codes(EXPERTS, 2, INNER // 2, HIDDEN),
        np.full((EXPERTS, 128, HIDDEN // 128), factor),
    )
    size, x = sum(part.nbytes for part in parts) // EXPERTS, bf16(rows, HIDDEN)
    for active in (0, 1, 2, 4, 6):
        last = (*listed(active), np.ones((EXPERTS, rows), np.float32), 10.0)
        yield f"experts, {active} of 6 active", experts, (x, *parts, *last), active * size
    outputs = 2 * INNER
    weight = codes(EXPERTS, 128, outputs // 128, HIDDEN // 128, 128)
    power = scales(EXPERTS, 128, outputs // 128)
    size = (weight.nbytes + power.nbytes) // EXPERTS
    for active in (1, 6):
        arguments = (x[None], weight, power, *listed(active), outputs)
        title = f"widened_active 5120 x 4608, {active} of 6 active"
        yield title, widened_active, arguments, active * size
    words = DRAW.integers(0, 256, (EXPERTS, 128, outputs // 128, 10, 64, 4), np.uint8)
    power = scales(EXPERTS, 128, 2, outputs)
    size = outputs * HIDDEN // 2 + outputs * HIDDEN // 32
    for active in (0, 1, 2, 4, 6):
        flags = (np.arange(EXPERTS) < active).astype(np.int32)[None]
        title = f"5120 x 4608, {active} of 6 active"
        yield f"fp4_gated {title}", fp4_gated, (x, words, power, flags, outputs), active * size
        arguments = (x, words, power, *listed(active), outputs)
        yield f"fp4_active {title}", fp4_active, arguments, active * size


def main(rows: list[int]) -> None:
    """Print one line per kernel and number of rows."""
    print(f"{'kernel':42} {'rows':>4} {'us':>7} {'limit':>7} {'HBM':>5}  bound by")
    rates = cost.load()
    for m in rows:
        for cases in (projections(m), routed(m)):
            for title, kernel, arguments, size in cases:
                found = cost.profile(kernel[2], *arguments)
                limit = size / rates.hbm_stack_gbs / 1e3
                busy = {e: max(us) for e, us in found.busy_us.items()}
                who = max(busy, key=lambda e: busy[e])
                print(
                    f"{title:42} {m:4} {found.us:7.1f} {limit:7.1f} {found.hbm_share:5.0%}  "
                    f"{who} {busy[who] / found.us:.0%}"
                )


if __name__ == "__main__":
    main([int(text) for text in sys.argv[1:]] or [1, 6])
