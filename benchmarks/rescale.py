"""How fast checkpoint bytes become device bytes, beside a table look-up and a memory copy.

    python benchmarks/rescale.py [--mib 256] [--threads 2] [--repeats 5]

Every line is GB of fp8 bytes per second (1 GB = 10^9 bytes), the best of the repeats, written into
memory that exists already unless the line says otherwise. "per CPU second" counts processor time of
all threads instead: on a busy machine it says what one free core would do. The results are compared
with the table first. Bytes are those of a trained weight: a normal distribution in 32x32 tiles.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch

from dslearn.formats import device, tiles
from dslearn.formats.halve import TABLE, Bytes, halve

COLUMNS = 5120  # hidden size of the released model


def weight(mib: int) -> tuple[Bytes, torch.Tensor]:
    """Codes [rows, 5120] and scale bytes of `mib` MiB: 1,024 rows, repeated."""
    values = np.random.default_rng(0).standard_normal((1024, COLUMNS), dtype=np.float32) / 50
    codes, scale = tiles.quantize(torch.from_numpy(values))
    times = max(1, (mib << 20) // codes.numel())
    return np.tile(codes.numpy(), (times, 1)), scale.repeat(times, 1)


def best(
    work: Callable[[], object], prepare: Callable[[], object], repeats: int
) -> tuple[float, float]:
    """Least seconds, of the clock and of the processor, of `repeats` calls of `work` alone."""
    clock, processor = [], []
    for _ in range(repeats):
        prepare()
        start, busy = time.perf_counter(), time.process_time()
        work()
        clock.append(time.perf_counter() - start)
        processor.append(time.process_time() - busy)
    return min(clock), min(processor)


def check(codes: Bytes, scale: torch.Tensor) -> None:
    """All 256 codes, alone and in long arrays with and without NaN, and a whole conversion."""
    every = np.arange(256, dtype=np.uint8)
    assert np.array_equal(halve(every), TABLE), "halve differs from the table"
    finite = np.tile(every[every & 0x7F != 0x7F], 9999)
    for long in (finite, np.append(finite, np.uint8(0xFF))):
        assert np.array_equal(halve(long), TABLE[long]), "halve differs in long arrays"
    rows = codes[:4096]
    new, byte, _ = device.to_device(torch.from_numpy(rows), scale[:128])
    assert np.array_equal(new.numpy(), TABLE[rows]), "to_device differs from the table"
    assert torch.equal(byte, scale[:128] + 1), "to_device: scale bytes"


def main() -> None:
    """Check, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    codes, scale = weight(options.mib)
    check(codes, scale)
    n, out = options.threads, np.zeros_like(codes)
    inside = torch.from_numpy(out)

    cases: dict[str, Callable[[], object]] = {
        "memory copy (np.copyto)": lambda: np.copyto(out, codes),
        "table, np.take(..., out=)": lambda: np.take(TABLE, codes, out=out, mode="clip"),
        "table, TABLE[codes], new memory": lambda: TABLE[codes],
        "halve, 1 thread": lambda: halve(codes, 1, out),
        f"halve, {n} threads": lambda: halve(codes, n, out),
        f"halve, {n} threads, new memory": lambda: halve(codes, n),
        f"to_device 'every', {n} threads": lambda: device.to_device(
            inside, scale, 32, "every", n, in_place=True
        ),
        f"to_device 'needed', {n} threads": lambda: device.to_device(
            inside, scale, 32, "needed", n, in_place=True
        ),
    }
    print(f"{codes.nbytes / 1e9:.2f} GB of e4m3 bytes, {list(codes.shape)} in 32x32 tiles")
    for name, work in cases.items():
        clock, busy = best(work, lambda: np.copyto(out, codes), options.repeats)
        gigabytes = codes.nbytes / 1e9
        print(f"{gigabytes / clock:7.2f} GB/s {gigabytes / busy:7.2f} GB per CPU second  {name}")
    for mode in ("every", "needed"):
        print(f"{mode}: {device.to_device(torch.from_numpy(codes), scale, 32, mode, n)[2]}")


if __name__ == "__main__":
    main()
