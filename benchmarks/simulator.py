"""How long the stand-in simulator takes, beside plain NumPy doing the same arithmetic.

    OMP_NUM_THREADS=1 python -m benchmarks.simulator [--repeats 5] [--columns 36864] [--inner 1280]

The first table is a block-scaled fp8 product of one row: weights are dequantised to bf16 by the
Vector engine, 128 rows of K at a time, and multiplied by the Tensor engine, with every check on.
Results are compared with NumPy first. The second is the cost of one small instruction of every
kind (benchmarks/instructions.py), beside the limit that the simulator is held to. Times are the
best of the repeats, by the clock; "CPU" counts the processor time of all threads, those of NumPy's
products too, hence the one thread above: a busy machine changes it less, but not little (neighbours
share its caches).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

import dslearn.kernels  # before nki: decides who runs it
from benchmarks import instructions

# isort: split
import nki
import nki.isa as nisa
import nki.language as nl

WIDTH = 2048  # columns at once: four banks of PSUM
BANK = 512
TIMES = 100  # instructions per measurement
LIMIT = 150  # us of CPU per small instruction
Array = np.ndarray[Any, Any]


def load_scales(scale: Any, row: int, first: int, tile: int) -> Any:
    """fp32 scales of 128 rows and WIDTH columns of the weight: a tile [128, WIDTH / tile]."""
    out = nl.ndarray(shape=(128, WIDTH // tile), dtype=nl.float32, buffer=nl.sbuf)
    for i in range(128 // tile):
        one = scale[row // tile + i : row // tile + i + 1, first // tile : (first + WIDTH) // tile]
        nisa.dma_copy(dst=out[i * tile : (i + 1) * tile, :], src=one.broadcast(0, tile))
    return out


def dequantised(weight: Any, scale: Any, row: int, first: int, tile: int) -> Any:
    """bf16 weights [128, WIDTH]: codes times the scale of their tile, rounded once."""
    codes = nl.ndarray(shape=(128, WIDTH), dtype=nl.float8_e4m3, buffer=nl.sbuf)
    nisa.dma_copy(dst=codes, src=weight[row : row + 128, first : first + WIDTH])
    scales = load_scales(scale, row, first, tile)
    out = nl.ndarray(shape=(128, WIDTH), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.tensor_tensor(
        dst=out.reshape((128, WIDTH // tile, tile)),
        data1=codes.reshape((128, WIDTH // tile, tile)),
        data2=scales.expand_dim(2).broadcast(2, tile),
        op=nl.multiply,
    )
    return out


@nki.jit
def scaled_product(x: Any, weight: Any, scale: Any, tile: int) -> Any:
    """y [M, N] bf16 = x [M, K] bf16 times weight [K, N] e4m3 with one fp32 scale per tile."""
    rows, inner = x.shape
    columns = weight.shape[1]
    y = nl.ndarray(shape=(rows, columns), dtype=nl.bfloat16, buffer=nl.shared_hbm)
    turned = nl.ndarray(shape=(128, inner // 128, rows), dtype=x.dtype, buffer=nl.sbuf)
    for k in range(inner // 128):
        nisa.dma_copy(dst=turned[:, k, :], src=x[:, 128 * k : 128 * k + 128].permute((1, 0)))
    for first in range(0, columns, WIDTH):
        total = nl.ndarray(shape=(rows, WIDTH), dtype=nl.float32, buffer=nl.psum)
        for k in range(inner // 128):
            wide = dequantised(weight, scale, 128 * k, first, tile)
            for bank in range(0, WIDTH, BANK):
                nisa.nc_matmul(
                    dst=total[:, bank : bank + BANK],
                    stationary=turned[:, k, :],
                    moving=wide[:, bank : bank + BANK],
                    accumulate=k > 0,
                )
        out = nl.ndarray(shape=(rows, WIDTH), dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.tensor_copy(dst=out, src=total)
        nisa.dma_copy(dst=y[:, first : first + WIDTH], src=out)
    return y


def numpy_product(x: Array, weight: Array, scale: Array, tile: int) -> Array:
    """The same arithmetic in NumPy, 128 rows of K at a time."""
    total = np.zeros((len(x), weight.shape[1]), np.float32)
    for k in range(0, len(weight), 128):
        wide = weight[k : k + 128].astype(np.float32).reshape(128 // tile, tile, -1, tile)
        wide *= scale[k // tile : (k + 128) // tile, None, :, None]
        rounded = wide.astype(ml_dtypes.bfloat16).astype(np.float32)
        total += x[:, k : k + 128].astype(np.float32) @ rounded.reshape(128, -1)
    return total.astype(ml_dtypes.bfloat16)


def best(work: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Least seconds of `work`, by the clock and by the processor."""
    clock, processor = [], []
    for _ in range(repeats):
        start, busy = time.perf_counter(), time.process_time()
        work()
        clock.append(time.perf_counter() - start)
        processor.append(time.process_time() - busy)
    return min(clock), min(processor)


def products(inner: int, columns: int, repeats: int) -> None:
    """Print the first table."""
    draw = np.random.default_rng(0)
    x = draw.standard_normal((1, inner)).astype(ml_dtypes.bfloat16)
    codes = draw.integers(0, 0x78, (inner, columns), dtype=np.uint8)
    codes |= draw.integers(0, 2, (inner, columns), dtype=np.uint8) << np.uint8(7)
    weight = codes.view(ml_dtypes.float8_e4m3)
    print(f"fp8 product 1 x {inner} x {columns}     simulated      CPU    NumPy   ratio")
    for tile in (32, 128):
        power = draw.integers(-8, -2, (inner // tile, columns // tile)).astype(np.float32)
        scale = np.exp2(power)
        got = scaled_product(x=x, weight=weight, scale=scale, tile=tile).astype(np.float32)
        expected = numpy_product(x, weight, scale, tile).astype(np.float32)
        # Both round to bf16 once; sums in another order may round to a neighbour.
        assert (np.abs(got - expected) <= 2.0**-7 * np.abs(expected) + 1e-3).all(), "wrong product"
        call = {"x": x, "weight": weight, "scale": scale, "tile": tile}
        clock, busy = best(lambda call=call: scaled_product(**call), repeats)  # type: ignore[misc]
        plain, _ = best(lambda call=call: numpy_product(**call), repeats)  # type: ignore[misc]
        name = f"  scales of {tile} x {tile}"
        print(f"{name:34s}{clock:8.2f} s {busy:6.2f} s {plain:6.2f} s {clock / plain:6.1f}x")


def small_instructions(repeats: int) -> None:
    """Print the second table, the slowest first."""
    found = {}
    for name, call in instructions.cases().items():
        call()  # tables of functions are made once
        found[name] = 1e6 / TIMES * best(repeated(call), repeats)[1]
    print(f"\none instruction on 128 x 64                   CPU   of {LIMIT} us")
    for name, us in sorted(found.items(), key=lambda item: -item[1]):
        print(f"  {name:38s}{us:8.1f} us {us / LIMIT:9.0%}{'  over' if us > LIMIT else ''}")
    over = sum(us > LIMIT for us in found.values())
    print(f"{len(found)} kinds, {over} over the limit")


def repeated(one: Callable[[], object]) -> Callable[[], object]:
    """`one`, TIMES times."""

    def work() -> None:
        for _ in range(TIMES):
            one()

    return work


def main() -> None:
    """Check, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--inner", type=int, default=1280)
    parser.add_argument("--columns", type=int, default=36864)
    options = parser.parse_args()
    print(dslearn.kernels.NKI.detail)
    products(options.inner, options.columns, options.repeats)
    small_instructions(options.repeats)


if __name__ == "__main__":
    main()
