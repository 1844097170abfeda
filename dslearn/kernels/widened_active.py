"""One product per expert in use, found in a list, with fp4 weights that were widened to fp8."""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from dslearn.kernels.expert_parts import at_expert, listed, near
from dslearn.kernels.fp4_gated import At, filling
from dslearn.kernels.linear_parts import (
    LANES,
    Pair,
    columns,
    my_tiles,
    pipeline,
    powers,
    product,
)

ROOM = 40 * 1024  # bytes per partition for the codes of a group of tiles


def _at_slot(slot: nisa.VirtualRegister) -> At:
    """Parts of a slot."""
    return lambda t, start, size: at_expert(t, slot, start, size)


@nki.jit
def widened_active(
    x: nl.NkiTensor,
    weight: nl.NkiTensor,
    power: nl.NkiTensor,
    order: nl.NkiTensor,
    count: nl.NkiTensor,
    outputs: int,
) -> nl.NkiTensor:
    """y[a] = x[a] · W[order[a]]ᵀ for the first `count` slots of a list, 0 for the rest of it.

    Dimensions:
        A slots, E experts; M rows, 1 to 128; K inputs, up to 20480; N outputs, at least 2.
        T tiles of 128 outputs, J steps of 128 inputs.
    Args:
        x: [A, M, K] bf16, or [1, M, K], the same rows for all slots, in HBM.
        weight: [E, 128, T, J, 128] uint8, e4m3 codes, each expert as `place_widened` puts it, in
            HBM.
        power: [E, 128, T] uint8, scale bytes 1 to 254, in HBM.
        order: [A, 1] int32, in HBM: the expert of each slot.
        count: [1, 1] int32, in HBM: how many slots compute, 0 to A.
        outputs: N; tiles beyond it are padding.
    Returns:
        y: [A, M, N] fp32, in shared HBM.
    Notes:
        The loop has `count` trips and finds weights by a runtime offset, so the kernel is as long
        as for one expert, reads the experts in use and no other, and copies none. Results lie by
        slot, not by expert: few rows fill few slots. Every row meets every listed expert; the
        tensor engine takes as long for 64 rows as for one. What is exact: see `fp4_widened`. Two
        cores read the same list, each for half of the outputs.
    Pseudocode:
        for a in range(count): y[a] = x[a] · W[order[a]]ᵀ
        for a in range(count, A): y[a] = 0
    """
    given, rows, inputs = x.shape
    slots, steps = order.shape[0], weight.shape[3]
    assert rows <= LANES, "at most 128 rows"
    y = nl.ndarray(shape=(slots, rows, outputs), dtype=nl.float32, buffer=nl.shared_hbm)
    groups = my_tiles(weight.shape[2], max(1, min(16, ROOM // (steps * LANES))))
    common = columns(x[0], 0, rows, steps) if given == 1 else None
    listing, fill = near(order), filling(y)
    trips = nisa.register_alloc()
    nisa.register_load(dst=trips, src=count)

    def one(slot: nisa.VirtualRegister) -> None:
        expert, turned = listed(listing, slot), common
        if given > 1:
            turned = columns(at_expert(x, slot, (0, 0), (rows, inputs)), 0, rows, steps)

        def load(group: tuple[int, int]) -> Pair:
            start, some = group
            scales = powers(at_expert(power, expert, (0, start), (LANES, some)), nl.float32)
            size = (LANES, some, steps, LANES)
            codes = nl.ndarray(shape=size, dtype=nl.uint8, buffer=nl.sbuf)
            nisa.dma_copy(dst=codes, src=at_expert(weight, expert, (0, start, 0, 0), size))
            return codes.view(nl.float8_e4m3), scales

        def make(loaded: Pair, i: int) -> Pair:
            return loaded[0][:, i, :, :], loaded[1][:, i : i + 1]

        def finish(made: Pair, result: nl.NkiTensor, i: int) -> None:
            sums = product(made[0], turned)
            nisa.tensor_scalar(dst=result[:, i, :], data=sums, op0=nl.multiply, operand0=made[1])

        target = at_expert(y, slot, (0, 0), (rows, outputs))
        pipeline(target, (0, rows), groups, 1, (load, make, finish))

    nl.fori_loop(lower=0, upper=trips, body_fun=one)
    nl.fori_loop(lower=trips, upper=slots, body_fun=lambda slot: fill(_at_slot(slot)))
    return y
