"""The kernels of streams, norms and Engram's gate at the released sizes: modelled times by rows.

    python -m benchmarks.stream_kernels [--write]

Two cores, without launch; nothing is measured (docs/performance.md). With --write, the table of
docs/performance.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks.attention_kernels import bound, normal
from benchmarks.reference_kernels import PAGE, lines, replaced
from dslearn import profiling
from dslearn.kernels import engram_gate, hc_attn_out, hc_collapse, hc_expand, hc_mixes
from dslearn.sim import cost

D, S, INNER, LATENT = 5120, 4, 2304, 8192
EPS, HC_EPS = 1e-20, 1e-6
ROWS = (1, 6, 64)
Launch = tuple[Any, tuple[Any, ...]]


def fp32(*shape: int) -> Tensor:
    """Normal values, fp32."""
    return normal(*shape, dtype=torch.float32)


def mixed(rows: int) -> Launch:
    """The coefficients of a sublayer."""
    numbers = S * (S + 2)
    fn = fp32(128, S * D // 128, numbers)
    return hc_mixes.hc_mixes, (normal(rows, S, D), fn, fp32(numbers), fp32(3), EPS, HC_EPS)


def written(rows: int) -> tuple[Tensor, ...]:
    """The streams, and what a write needs beside its y."""
    return normal(rows, S, D), fp32(rows, S), fp32(rows, S, S)


def projected(rows: int) -> Launch:
    """wo_b and the write in one kernel."""
    _, (x, weight, power, _) = profiling.named("fp8_folded", [f"{rows}x{LATENT}x{D}"])
    return hc_attn_out.hc_attn_out, (x, weight, power, *written(rows))


CASES: dict[str, Callable[[int], Launch]] = {
    "hc_mixes": mixed,
    "hc_collapse": lambda rows: (hc_collapse.hc_collapse, (normal(rows, S, D), fp32(rows, S))),
    "hc_expand": lambda rows: (hc_expand.hc_expand, (normal(rows, D), *written(rows))),
    f"hc_attn_out, K = {LATENT}": projected,
    "engram_gate": lambda rows: (
        engram_gate.engram_gate,
        (normal(rows, S, D), normal(rows, (S + 1) * D), fp32(S, D), EPS),
    ),
    f"rmsnorm {D}": lambda rows: profiling.named("rmsnorm", [f"{rows}x{D}"]),
    f"swiglu {INNER}": lambda rows: profiling.named("swiglu", [f"{rows}x{INNER}"]),
}


def table() -> Iterator[tuple[str, ...]]:
    """Rows: kernel, time for each of `ROWS`; of six, share of the limit and what bounds it."""
    counts = (f"{rows} row{'s' * (rows > 1)}" for rows in ROWS)
    yield "kernel", *counts, "of the limit", "bound at 6 rows by"
    for name, case in CASES.items():
        found = {}
        for rows in ROWS:
            kernel, arguments = case(rows)
            found[rows] = cost.profile(kernel[2], *arguments)
        six = found[6]
        share = max(six.hbm_share, six.pe_share)
        yield name, *(f"{one.us:.1f}" for one in found.values()), f"{share:.0%}", bound(six)


def main() -> None:
    """Print the table, or put it in the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="replace the table of the page")
    if parser.parse_args().write:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(replaced(page, "streams", table()), encoding="utf-8")
    else:
        print("\n".join(lines(table())))


if __name__ == "__main__":
    main()
