"""The shared expert in one kernel: gate and up, clamp, silu, down; weights in fp8 tiles."""

from __future__ import annotations

from collections.abc import Callable

import nki
import nki.isa as nisa
import nki.language as nl

from dslearn.kernels.blocks import LIMITS, UNIT, Block, Step, cut, mine, product
from dslearn.kernels.expert_parts import activated, all_blocks, finish
from dslearn.kernels.folded import diagonal, folded, own, row_powers, scaled_copies
from dslearn.kernels.linear_parts import columns


def _cut(sums: nl.NkiTensor, rows: int, limit: float) -> nl.NkiTensor:
    """The diagonal of sums [n, 4 M] in PSUM, cut at `limit`: fp32 [n, M] in SBUF."""
    tile = nl.ndarray(shape=(sums.shape[0], rows), dtype=nl.float32, buffer=nl.sbuf)
    for unit in range(sums.shape[0] // UNIT):
        nisa.tensor_scalar(
            dst=tile[UNIT * unit : UNIT * (unit + 1), :],
            data=own(sums, unit, rows),
            op0=nl.minimum,
            operand0=limit,
        )
    return tile


def _hidden(
    turned: nl.NkiTensor, codes: nl.NkiTensor, scale: nl.NkiTensor, limit: float
) -> tuple[list[Block], list[nl.NkiTensor]]:
    """Blocks of half of I, and for each its hidden values [32 units, M], rounded to bf16."""
    rows = turned.shape[2]
    source = folded(turned, codes, scale, 2)
    blocks = cut(codes.shape[2] // (2 * UNIT))
    values = []
    for compute in product(blocks, 2, turned.shape[1], 4 * rows, source):
        for _, (gate, up) in compute():
            hidden = activated(_cut(gate, rows, limit), _cut(up, rows, limit), limit, None)
            exact = nl.ndarray(shape=hidden.shape, dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=exact, src=hidden)  # one number per lane must be fp32
            values.append(exact)
    return blocks, values


def _share(
    blocks: list[Block], values: list[nl.NkiTensor], codes: nl.NkiTensor, scale: nl.NkiTensor
) -> nl.NkiTensor:
    """What hidden values of some blocks give to every output: [128, D/128, M] fp32 in SBUF."""
    rows, outputs = values[0].shape[1], codes.shape[1]
    share = nl.ndarray(shape=(128, outputs // 128, rows), dtype=nl.float32, buffer=nl.sbuf)

    def source(base: int, units: int) -> Step:
        def step(t: int) -> tuple[nl.NkiTensor, Callable[[int, int, int], nl.NkiTensor]]:
            first, count = blocks[t]
            tile = nl.ndarray(shape=(UNIT * count, UNIT * units), dtype=nl.uint8, buffer=nl.sbuf)
            inputs = codes[UNIT * first : UNIT * (first + count), :]
            nisa.dma_copy(dst=tile, src=inputs[:, UNIT * base : UNIT * (base + units)])
            powers = row_powers(scale[first : first + count, base : base + units])
            copies = scaled_copies(values[t], powers)

            def moving(start: int, number: int, plane: int) -> nl.NkiTensor:
                return copies[:, :, start : start + number]

            return tile.view(nl.float8_e4m3).reshape((UNIT * count, units, 1, UNIT)), moving

        return step

    for compute in product(all_blocks(outputs // UNIT), 1, len(blocks), 4 * rows, source):
        for block, sums in compute():
            diagonal(share[:, block[0] // 4, :], sums[0])
    return share


@nki.jit
def shared_expert(
    x: nl.NkiTensor,
    gate_up: nl.NkiTensor,
    gate_up_scale: nl.NkiTensor,
    down: nl.NkiTensor,
    down_scale: nl.NkiTensor,
    limit: float,
) -> nl.NkiTensor:
    """y = (silu(min(x · W1, limit)) · clamp(x · W3, -limit, limit)) · W2.

    Dimensions:
        M rows, 1 to 128; K hidden size; D the same padded to 256; I intermediate, padded to 64.
    Args:
        x: [M, K] bf16, in HBM; not quantised.
        gate_up: [2, 128, D/128, I] uint8, e4m3 codes up to 240: two halves of I, input 128 j + p
            at [.., p, j, ..], outputs of W1 and W3 in turns of 32, in HBM.
        gate_up_scale: [2, 4, I/32, D/128] uint8, exponents of 32 x 32 tiles, in HBM.
        down: [2, I/2, D] uint8, e4m3 codes up to 240, in HBM.
        down_scale: [2, I/64, D/32] uint8, exponents, in HBM.
            `formats.inputs_first.shared_expert` makes all four.
        limit: positive number, `swiglu_limit`.
    Returns:
        y: [M, D] bf16, in shared HBM; columns beyond K are zeros.
    Notes:
        Every code is read once and goes into the tensor engine as it is; scales go to activations
        (`kernels/folded.py`). Gate and up stay fp32; the hidden values are rounded to bf16 once
        and not quantised to fp8, which would need the maximum of 32 lanes. Sums are fp32 and y is
        rounded once. 35 MB of the released expert take 0.05 ms; modelled 0.07 for up to 16 rows,
        and 0.44 for 64, where folding takes most of the time. Two cores take half of I each from
        the first product to the second: each has a share of every output, and one exchange
        of M · D/2 fp32 numbers is all they tell each other.
    Pseudocode:
        for each block i of this core's half of I:
            h[i, m] = bf16(silu(min(W1ᵀ x, limit)) · max(min(W3ᵀ x, limit), -limit))
        share[d, m] = sum over i of W2[i, d] · h[i, m]
        y[m, d] = bf16(share of core 0 + share of core 1)
    """
    rows, width = x.shape[0], down.shape[2]
    y = nl.ndarray(shape=(rows, width), dtype=x.dtype, buffer=nl.shared_hbm)
    assert x.shape[0] <= 128 and x.shape[1] <= width, LIMITS
    turned = columns(x, 0, x.shape[0], width // 128, dtype=nl.float32)
    shares = []
    for half in mine():
        blocks, values = _hidden(turned, gate_up[half], gate_up_scale[half], limit)
        shares.append(_share(blocks, values, down[half], down_scale[half]))
    finish(shares, y)
    return y
