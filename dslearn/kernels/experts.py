"""Routed experts in one kernel: a loop over the list of active ones, each fused from x to y."""

from __future__ import annotations

from collections.abc import Callable

import nki
import nki.isa as nisa
import nki.language as nl

from dslearn.kernels.blocks import (
    LIMITS,
    UNIT,
    Block,
    Load,
    cut,
    mine,
    plain,
    product,
    several,
)
from dslearn.kernels.expert_parts import activated, all_blocks, at_expert, finish, listed, near
from dslearn.kernels.linear_parts import columns


def _gate_up_steps(t: nl.NkiTensor, expert: nl.NkiTensor, half: int) -> Load:
    """The `load` of `blocks.plain` for e4m3 codes t[expert, half], t [E, 2, 128, J, W]."""

    def fetch(j: int, count: int, first: int, width: int) -> nl.NkiTensor:
        tile = nl.ndarray(shape=(128, count, width), dtype=nl.uint8, buffer=nl.sbuf)
        part = at_expert(t, expert, (half, 0, j, first), (1, 128, count, width))
        nisa.dma_copy(dst=tile, src=part)
        return tile.view(nl.float8_e4m3)

    return several(fetch, t.shape[3], 1)


def _down_rows(t: nl.NkiTensor, expert: nl.NkiTensor, half: int, blocks: list[Block]) -> Load:
    """The `load` of `blocks.plain` for e4m3 codes t[expert, half], t [E, 2, I/2, D], by blocks."""

    def load(i: int, first: int, width: int) -> nl.NkiTensor:
        start, height = UNIT * blocks[i][0], UNIT * blocks[i][1]
        tile = nl.ndarray(shape=(height, width), dtype=nl.uint8, buffer=nl.sbuf)
        part = at_expert(t, expert, (half, start, first), (1, height, width))
        nisa.dma_copy(dst=tile, src=part)
        return tile.view(nl.float8_e4m3)

    return load


def _weights(weights: nl.NkiTensor, expert: nl.NkiTensor, rows: int) -> nl.NkiTensor:
    """The router's weights of an expert, the same in every lane: [128, M] fp32."""
    tile = nl.ndarray(shape=(128, rows), dtype=nl.float32, buffer=nl.sbuf)
    source = weights.ap(
        pattern=[[0, 128], [1, rows]], offset=0, scalar_offset=expert, indirect_dim=0
    )
    nisa.dma_copy(dst=tile, src=source)
    return tile


def _scaled(sums: nl.NkiTensor, factor: nl.NkiTensor, limit: float) -> nl.NkiTensor:
    """min(sums · factor of the lane, limit): fp32 [n, M] in SBUF."""
    tile = nl.ndarray(shape=sums.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=tile, data=sums, op0=nl.multiply, operand0=factor, op1=nl.minimum, operand1=limit
    )
    return tile


def _hidden(
    turned: nl.NkiTensor,
    blocks: list[Block],
    load: Load,
    factor: Callable[[int, int], nl.NkiTensor],
    weight: nl.NkiTensor,
    limit: float,
) -> list[nl.NkiTensor]:
    """Hidden values [32 units, M] bf16 of the blocks of half an expert.

    Args:
        turned: [128, J, M] bf16 in SBUF.
        blocks: of I/2.
        load: of `blocks.plain`.
        factor: factor(first, lanes) -> [lanes, 2] fp32 in SBUF, those of gate and up.
        weight: [128, M] fp32, the router's.
        limit: `swiglu_limit`.
    """
    tiles, rows = turned.shape[1], turned.shape[2]
    found = []
    source = plain(lambda t: turned[:, t, :], load, 2)
    for compute in product(blocks, 2, tiles, rows, source):
        for (first, count), (gate, up) in compute():
            lanes = UNIT * count
            both = factor(UNIT * first, lanes)
            cut_gate = _scaled(gate, both[:, 0:1], limit)
            cut_up = _scaled(up, both[:, 1:2], limit)
            found.append(activated(cut_gate, cut_up, limit, weight[0:lanes, :]))
    return found


def _add_share(
    share: nl.NkiTensor, values: list[nl.NkiTensor], load: Load, factor: nl.NkiTensor
) -> None:
    """share [128, D/128, M] += factor [128, D/128] of the outputs times their products."""
    tiles, rows = share.shape[1], share.shape[2]
    source = plain(lambda t: values[t], load, 1)
    for compute in product(all_blocks(4 * tiles), 1, len(values), rows, source):
        for block, sums in compute():
            j = block[0] // 4
            nisa.scalar_tensor_tensor(
                dst=share[:, j, :],
                data=sums[0],
                op0=nl.multiply,
                operand0=factor[:, j : j + 1],
                op1=nl.add,
                operand1=share[:, j, :],
            )


def _factors(
    t: nl.NkiTensor, expert: nl.NkiTensor, start: tuple[int, ...], size: tuple[int, ...]
) -> nl.NkiTensor:
    """Part of t[expert] as a tile in SBUF; the last two dims of `size` are its shape."""
    tile = nl.ndarray(shape=size[-2:], dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=at_expert(t, expert, start, size))
    return tile


@nki.jit
def experts(  # noqa: PLR0913 - the weights of an expert are four tensors
    x: nl.NkiTensor,
    gate_up: nl.NkiTensor,
    gate_up_factor: nl.NkiTensor,
    down: nl.NkiTensor,
    down_factor: nl.NkiTensor,
    order: nl.NkiTensor,
    count: nl.NkiTensor,
    weights: nl.NkiTensor,
    limit: float,
) -> nl.NkiTensor:
    """y = sum over active experts of (w · silu(min(x W1, limit)) · clamp(x W3, ±limit)) · W2.

    Dimensions:
        M rows, 1 to 128; K hidden size; D the same padded to 256; E experts; I intermediate,
        padded to 64.
    Args:
        x: [M, K] bf16, in HBM; not quantised.
        gate_up: [E, 2, 128, D/128, I] uint8, e4m3 codes up to 240: two halves of I, input
            128 j + p at [.., p, j, ..], outputs of W1 and W3 in turns of 32, in HBM.
        gate_up_factor: [E, 2, I/2, 2] fp32, what multiplies the outputs of W1 and W3, in HBM.
        down: [E, 2, I/2, D] uint8, e4m3 codes, in HBM.
        down_factor: [E, 128, D/128] fp32: output 128 j + p has factor [p, j], in HBM.
            `formats.inputs_first.routed_expert` makes all four of fp4 weights, without rounding.
        order: [E, 1] int32, in HBM: the active experts first, ascending.
        count: [1, 1] int32, in HBM: how many are active, 0 to E.
        weights: [E, M] fp32, in HBM: the router's weights, 0 where a row does not use an expert.
        limit: positive number, `swiglu_limit`.
    Returns:
        y: [M, D] bf16, in shared HBM; columns beyond K are zeros, and all of it if none is active.
    Notes:
        A dynamic loop with `count` trips: an expert that no row uses costs nothing, not a launch,
        not a test. Weights are found by a runtime offset on the expert dimension. Every row goes
        through every active expert, times 0 where it did not choose it: the tensor engine takes
        64 cycles per tile for up to 64 rows anyway. A widened expert is read at 1 byte per value,
        35 MB and 0.05 ms for the released sizes; packed it would be 19 MB and vector-bound. Its
        factors meet sums, never weights. Gate and up stay fp32, the hidden values are rounded to
        bf16 once and not quantised to fp8; the sum over experts is fp32, in the order of the
        list, and y is rounded once. Two cores take half of I each, of every expert, and exchange
        their shares of y once, after the loop.
    Pseudocode:
        for e in order[:count]:
            h[i, m] = bf16(silu(min(W1ᵀ x, limit)) · max(min(W3ᵀ x, limit), -limit) · weights[e, m])
            share[d, m] += down_factor[d] · (sum over i of W2[e, i, d] · h[i, m])
        y[m, d] = bf16(share of core 0 + share of core 1)
    """
    rows, width = x.shape[0], down.shape[3]
    y = nl.ndarray(shape=(rows, width), dtype=x.dtype, buffer=nl.shared_hbm)
    assert rows <= 128 and x.shape[1] <= width, LIMITS
    turned = columns(x, 0, rows, width // 128)
    blocks = cut(down.shape[2] // UNIT)
    shares = []
    for half in mine():
        share = nl.ndarray(shape=(128, width // 128, rows), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=share, value=0.0)
        shares.append((half, share))
    trips = nisa.register_alloc()
    nisa.register_load(dst=trips, src=count)
    listing = near(order)

    def one(index: nisa.VirtualRegister) -> None:
        expert = listed(listing, index)
        weight = _weights(weights, expert, rows)
        factor = _factors(down_factor, expert, (0, 0), (128, width // 128))
        for half, share in shares:

            def both(first: int, lanes: int, half: int = half) -> nl.NkiTensor:
                return _factors(gate_up_factor, expert, (half, first, 0), (1, lanes, 2))

            load = _gate_up_steps(gate_up, expert, half)
            values = _hidden(turned, blocks, load, both, weight, limit)
            _add_share(share, values, _down_rows(down, expert, half, blocks), factor)

    nl.fori_loop(lower=0, upper=trips, body_fun=one)
    finish([share for _, share in shares], y)
    return y
