"""The same fp8 product from both layouts of a weight: modelled, for docs/kernels.md.

    python -m benchmarks.weight_layouts

Scales folded, two cores. `fp8_folded` reads its weight tile by tile; `engram_kv` streams it, here
at the sizes of the other. Source: docs/kernels.md, "Two layouts of a weight".
"""

from __future__ import annotations

from benchmarks.expert_kernels import codes, scales
from dslearn import profiling
from dslearn.kernels.engram_kv import engram_kv
from dslearn.sim import cost

SIZES = ((1280, 36864), (6144, 25600))  # inputs, outputs
ROWS = (1, 6, 16)


def streamed(rows: int, inputs: int, outputs: int) -> float:
    """Modelled µs of x [rows, inputs] times a weight that streams."""
    steps = inputs // 128
    weight = codes(2, 128, steps, outputs // 2), scales(2, 4, outputs // 64, steps)
    return cost.profile(engram_kv[2], codes(rows, inputs), scales(rows, inputs // 32), *weight).us


def tiled(rows: int, inputs: int, outputs: int) -> float:
    """Modelled µs of the same product tile by tile."""
    return profiling.profile("fp8_folded", [f"{rows}x{inputs}x{outputs}"], 2).us


if __name__ == "__main__":
    print("| rows x inputs x outputs | fp8_folded | engram_kv's way |\n|---|---|---|")
    for inputs, outputs in SIZES:
        for rows in ROWS:
            sizes = rows, inputs, outputs
            shape = " x ".join(map(str, sizes))
            print(f"| {shape} | {tiled(*sizes):.1f} | {streamed(*sizes):.1f} |", flush=True)
