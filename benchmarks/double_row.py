"""Would fp8 activations pay? What `double_row` needs, what that changes, what it would save.

    python -m benchmarks.double_row [--write]

The mode contracts 256 inputs per pass instead of 128, and takes fp8 in both operands. Then scales
meet sums, not operands, and a sum has one scale for all its inputs. Two tables: the modelled time
of products with such operands, to which every favour is done (neither operands nor results are
turned); and how many values change when one scale serves all inputs of a row and of an output, on
normal numbers and on what tiny's own layers read, and what that does to the outputs. Times are of
two cores without launch; nothing is measured. With --write, the tables of docs/performance.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

import dslearn
from benchmarks.reference_kernels import PAGE, lines, replaced
from dslearn import kernels, profiling
from dslearn.formats import rows, tiles
from dslearn.model.linear import Linear
from dslearn.sim import cost

import nki  # isort: skip - after dslearn.kernels, which decides whose it is
import nki.isa as nisa  # isort: skip
import nki.language as nl  # isort: skip

assert kernels.NKI.status == "stand-in", "only the stand-in records what the model needs"

Rows = Iterator[tuple[str, ...]]
PAIR = 256  # inputs of one pass
TEXT = "The tensor engine contracts over partitions, so a weight must arrive inputs first. " * 8
LAYERS = ("attn.wq_b", "attn.wo_b", "shared_experts.w2", "engram.wkv")
BLOCK, LARGEST = 32, 240  # inputs of a scale, and the largest e4m3 number of trn2
SHAPES = ((1280, 4096), (5120, 4096))


@nki.jit
def double_row(
    x: nl.NkiTensor, weight: nl.NkiTensor, row: nl.NkiTensor, output: nl.NkiTensor
) -> nl.NkiTensor:
    """y = sum over groups g of row[g] · output[g] · (x · W of the inputs of g).

    Dimensions:
        M rows, at most 512; T tiles of 128 outputs; J passes of 256 inputs, J/G of them in each of
        G groups of inputs.
    Args:
        x: [128, J, 2, M] uint8, e4m3 codes, in HBM; weight: [128, T, J, 2, 128] uint8, the same.
        row: [G, M] fp32, in HBM; output: [128, T, G] fp32: what multiplies rows and outputs.
    Returns:
        y: [128, T, M] bf16, in shared HBM: outputs on the partitions.
    """
    _, count, steps, _, lanes = weight.shape
    groups, rows = row.shape
    y = nl.ndarray(shape=(lanes, count, rows), dtype=nl.bfloat16, buffer=nl.shared_hbm)
    moving = nl.ndarray(shape=x.shape, dtype=nl.uint8, buffer=nl.sbuf)
    nisa.dma_copy(dst=moving, src=x)
    moving = moving.view(nl.float8_e4m3)
    across = nl.ndarray(shape=(lanes, groups, rows), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=across, src=row.expand_dim(0).broadcast(0, lanes))
    factors = nl.ndarray(shape=output.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=factors, src=output)
    mine = count // nl.num_programs()
    for t in range(mine):
        tile = nl.program_id(axis=0) * mine + t
        codes = nl.ndarray(shape=(lanes, steps, 2, lanes), dtype=nl.uint8, buffer=nl.sbuf)
        nisa.dma_copy(dst=codes, src=weight[:, tile])
        stationary = codes.view(nl.float8_e4m3)
        total = nl.ndarray(shape=(lanes, rows), dtype=nl.float32, buffer=nl.sbuf)
        result = nl.ndarray(shape=(lanes, rows), dtype=nl.bfloat16, buffer=nl.sbuf)
        for g in range(groups):
            sums = nl.ndarray(shape=(lanes, rows), dtype=nl.float32, buffer=nl.psum)
            passes = steps // groups
            for i in range(passes):
                nisa.nc_matmul(
                    dst=sums,
                    stationary=stationary[:, g * passes + i, :, :],
                    moving=moving[:, g * passes + i, :, :],
                    accumulate=i > 0,
                    perf_mode=nisa.matmul_perf_mode.double_row,
                )
            scaled = nl.ndarray(shape=(lanes, rows), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=scaled, data1=sums, data2=across[:, g, :], op=nl.multiply)
            part = result if groups == 1 else total if g == 0 else scaled
            nisa.activation(dst=part, op=nl.copy, data=scaled, scale=factors[:, tile, g : g + 1])
            if g > 0:  # Vector and GpSimd add in turns
                nisa.tensor_tensor(
                    dst=result if g == groups - 1 else total,
                    data1=total,
                    data2=scaled,
                    op=nl.add,
                    engine=nisa.engine.gpsimd if g % 2 else nisa.engine.vector,
                )
        nisa.dma_copy(dst=y[:, tile], src=result)
    return y


def arguments(count: int, inputs: int, outputs: int, groups: int) -> tuple[np.ndarray, ...]:
    """Random operands of `double_row` for M rows, K inputs, N outputs and G groups."""
    rng = np.random.default_rng(0)
    steps, wide = inputs // PAIR, outputs // 128
    x = rng.integers(0, 0x70, (128, steps, 2, count), np.uint8)
    weight = rng.integers(0, 0x70, (128, wide, steps, 2, 128), np.uint8)
    row, output = (
        np.full((groups, count), 0.5, np.float32),
        np.ones((128, wide, groups), np.float32),
    )
    return x, weight, row, output


def times() -> Rows:
    """Rows: shape, then modelled µs of the product with decoded weights and of both others."""
    yield "rows x inputs x outputs", "fp8_linear", "one scale per 256 inputs", "one scale in all"
    for inputs, outputs in SHAPES:
        for count in (64, 128, 256, 512):
            shape = f"{count}x{inputs}x{outputs}"
            found = [profiling.profile("fp8_linear", [shape], 2).us]
            for groups in (inputs // PAIR, 1):
                given = arguments(count, inputs, outputs, groups)
                found.append(cost.profile(double_row[2], *given).us)
            yield shape, *(f"{us:.1f}" for us in found)


def samples() -> dict[str, list[tuple[Tensor, Tensor]]]:
    """Kind of product -> inputs [M, K] before they are quantised, and weights [N, K]."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal((128, 4096), np.float32))
    weight = torch.from_numpy(rng.standard_normal((1024, 4096), np.float32)) / 64
    stored = tiles.dequantize(*tiles.quantize(weight, fp8_max=LARGEST))
    large = x.clone()
    large[:, rng.choice(4096, 8, replace=False)] *= 100
    found = {
        "normal numbers": [(x, stored)],
        "8 of 4096 inputs 100 times larger": [(large, stored)],
    }
    lm = dslearn.load("tiny")
    for name, layer in lm.model.named_modules():
        kind = next((kind for kind in LAYERS if name.endswith(kind)), None)
        if kind and isinstance(layer, Linear):
            pairs = found.setdefault(f"tiny, {kind}", [])
            layer.register_forward_pre_hook(
                lambda m, given, pairs=pairs: pairs.append((given[0].flatten(0, -2), m.weight))
            )
    lm.forward([lm.encode(TEXT)])
    return found


def changes() -> Rows:
    """Rows: kind, then shares of values that one scale for all inputs changes, and errors."""
    yield "operands", "activations", "weights", "outputs in bf16", "error", "error of fp8 itself"
    with torch.inference_mode():
        for kind, pairs in samples().items():
            each = torch.tensor([_changed(x.float(), weight) for x, weight in pairs])
            moved, weights, outputs, error, itself = each.double().mean(0).tolist()
            shares = f"{moved:.2%}", f"{weights:.2%}", f"{outputs:.1%}"
            yield kind, *shares, f"{error:.1e}", f"{itself:.1e}"


def _changed(x: Tensor, weight: Tensor) -> tuple[float, ...]:
    inputs = x.shape[1]
    fine, coarse = (rows.fake_fp8(x, block, LARGEST) for block in (BLOCK, inputs))
    flat = rows.fake_fp8(weight, inputs, LARGEST)
    before, after, exact = fine @ weight.T, coarse @ flat.T, x @ weight.T
    return (
        _share(fine, coarse),
        _share(weight, flat),
        _share(before.bfloat16(), after.bfloat16()),
        float((after - before).norm() / before.norm()),
        float((before - exact).norm() / exact.norm()),
    )


def _share(a: Tensor, b: Tensor) -> float:
    """Of the values that are not zero in `a`, those that differ in `b`."""
    return float((a != b)[a != 0].float().mean())


def main() -> None:
    """Print; with --write, into docs/performance.md."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write docs/performance.md")
    options = parser.parse_args()
    for name, table in (("double row times", times()), ("double row changes", changes())):
        found = list(table)
        if options.write:
            page = PAGE.read_text(encoding="utf-8")
            PAGE.write_text(replaced(page, name, iter(found)), encoding="utf-8")
        print(f"\n{name}\n\n" + "\n".join(lines(iter(found))), flush=True)


if __name__ == "__main__":
    main()
