"""The ladders of the quantised products: modelled time of every version, beside the HBM limit.

    python -m benchmarks.linear_kernels [--write]

Two cores, without launch; nothing is measured (docs/performance.md). The limit is the time that the
stored weight and its scales take from HBM at the rate the two cores of a stack share. With --write,
the tables of docs/performance.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from benchmarks import expert_kernels
from benchmarks.reference_kernels import PAGE, lines, replaced
from dslearn import profiling
from dslearn.sim import cost

Rows = Iterator[tuple[str, ...]]
# Kernel, bytes per weight in HBM with its scale. Placed fp8 scales are a byte per 32 weights.
FP8 = {"naive_fp8": 1 + 1 / 1024, "fp8_linear": 1 + 1 / 32, "fp8_folded": 1 + 1 / 32}
FP4 = {"naive_fp4": 1 / 2 + 1 / 32, "fp4_linear": 1 / 2 + 1 / 32, "fp4_widened": 1.0}
LADDERS = (
    (FP8, "1x1280x36864"),
    (FP8, "64x1280x36864"),
    (FP4, "1x5120x4608"),
    (FP4, "64x5120x4608"),
)


def ladder() -> Rows:
    """Rows: kernel, shape, time, what its own bytes allow, share of HBM, what limits it."""
    yield "kernel", "rows x inputs x outputs", "kernel µs", "limit µs", "of HBM", "bound by"
    stack = cost.load().hbm_stack_gbs
    for kernels, shape in LADDERS:
        _, inputs, outputs = map(int, shape.split("x"))
        for kernel, size in kernels.items():
            found = profiling.profile(kernel, [shape], 2)
            limit = inputs * outputs * size / stack / 1e3
            times = f"{found.us:.1f}", f"{limit:.1f}", f"{found.hbm_share:.0%}"
            yield kernel, shape, *times, found.bound.partition("bound by ")[2]


def crossover() -> Rows:
    """Rows: number of rows, then the time of both fp8 products on 1280 x 4096."""
    yield "rows", "fp8_folded µs", "fp8_linear µs"
    for rows in (1, 8, 16, 32, 64, 128, 512):
        shape = f"{rows}x1280x4096"
        times = (profiling.profile(k, [shape], 2).us for k in ("fp8_folded", "fp8_linear"))
        yield str(rows), *(f"{us:.1f}" for us in times)


def experts() -> Rows:
    """Rows: the kernels of `expert_kernels`, one row of activations."""
    yield "kernel", "kernel µs", "limit µs", "of HBM"
    stack = cost.load().hbm_stack_gbs
    for cases in (expert_kernels.projections(1), expert_kernels.routed(1)):
        for title, kernel, arguments, size in cases:
            found = cost.profile(kernel[2], *arguments)
            limit = size / stack / 1e3
            yield title, f"{found.us:.1f}", f"{limit:.1f}", f"{found.hbm_share:.0%}"


def main() -> None:
    """Model and print; with --write, into docs/performance.md."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write docs/performance.md")
    options = parser.parse_args()
    print("Modelled, not measured.")
    tables = {"linear kernels": ladder(), "crossover": crossover(), "expert kernels": experts()}
    for name, rows in tables.items():
        found = list(rows)
        if options.write:
            page = PAGE.read_text(encoding="utf-8")
            PAGE.write_text(replaced(page, name, iter(found)), encoding="utf-8")
            print(f"{PAGE.name}: {name} is written")
        else:
            print(f"\n{name}\n\n" + "\n".join(lines(iter(found))), flush=True)


if __name__ == "__main__":
    main()
