"""What the two expert kernels share: the activation between the products, and the last sum.

Everything lies with outputs on partitions: what the first product gives is what the second takes.
M rows, D hidden size padded to 256, I intermediate.
"""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl

from dslearn.kernels.blocks import Block, mine, store_rows

WHOLE = 4  # units of a whole block


def at_expert(
    t: nl.NkiTensor, expert: nl.NkiTensor, start: tuple[int, ...], size: tuple[int, ...]
) -> nl.NkiTensor:
    """The part of t[expert] in HBM that begins at `start` and has shape `size`.

    Args:
        t: [E, ...] in HBM.
        expert: a (1, 1) tile or a register.
        start, size: one number for each dim of t but the first.
    """
    pattern: list[list[int]] = []
    offset, stride = 0, 1
    for d in range(len(size)):
        i = len(size) - 1 - d
        pattern = [[stride, size[i]]] + pattern
        offset += start[i] * stride
        stride *= t.shape[i + 1]
    return t.ap(pattern=pattern, offset=offset, scalar_offset=expert, indirect_dim=0)


def near(order: nl.NkiTensor) -> nl.NkiTensor:
    """A list [E, 1] of HBM as a tile [1, E] in SBUF, so that no trip of a loop waits for HBM."""
    number = order.shape[0]
    tile = nl.ndarray(shape=(1, number), dtype=order.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=order.reshape((1, number)))
    return tile


def listed(order: nl.NkiTensor, index: nisa.VirtualRegister) -> nl.NkiTensor:
    """order[index] as a (1, 1) tile; order [1, E] int32 in SBUF, index a register."""
    expert = nl.ndarray(shape=(1, 1), dtype=nl.int32, buffer=nl.sbuf)
    pattern = [[order.shape[1], 1], [1, 1]]
    source = order.ap(pattern=pattern, offset=0, scalar_offset=index, indirect_dim=1)
    nisa.tensor_copy(dst=expert, src=source, engine=nisa.engine.gpsimd)
    return expert


def activated(
    gate: nl.NkiTensor, up: nl.NkiTensor, limit: float, weight: nl.NkiTensor
) -> nl.NkiTensor:
    """silu(gate) · max(up, -limit) · weight as a bf16 tile: the one rounding between the products.

    Args:
        gate, up: [n, M] fp32 in SBUF, cut at `limit` from above already.
        limit: `swiglu_limit`.
        weight: [n, M] fp32, the router's weight of each row, or None.
    """
    silu = nl.ndarray(shape=gate.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=silu, op=nl.silu, data=gate)
    hidden = nl.ndarray(shape=gate.shape, dtype=nl.bfloat16, buffer=nl.sbuf)
    whole = hidden
    if weight != None:  # noqa: E711 - the language has no `is`
        whole = nl.ndarray(shape=gate.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(
        dst=whole, data=up, op0=nl.maximum, operand0=-limit, op1=nl.multiply, operand1=silu
    )
    if weight != None:  # noqa: E711
        nisa.tensor_tensor(dst=hidden, data1=whole, data2=weight, op=nl.multiply)
    return hidden


def all_blocks(units: int) -> list[Block]:
    """Blocks of four units, all of them: the outputs of the second product."""
    return [(first, WHOLE) for first in range(0, units, WHOLE)]


def finish(partial: list[nl.NkiTensor], y: nl.NkiTensor) -> None:
    """y [M, D] = the sum of the two halves' shares, rounded once.

    Half of the hidden values gives a share of every output. Two cores have one share each: they
    exchange what the other needs for its half of the outputs. One core has both.

    Args:
        partial: shares [128, D/128, M] fp32 in SBUF of the halves in `blocks.mine`.
        y: [M, D] in HBM.
    """
    tiles, rows = partial[0].shape[1], partial[0].shape[2]
    if len(mine()) == 2:
        _store_sum(partial[0], partial[1], y, 0)
        return
    core, middle = nl.program_id(axis=0), tiles // 2
    away = middle * (1 - core)
    sent = partial[0][:, away : away + middle, :]
    arrived = nl.ndarray(shape=(128, middle, rows), dtype=nl.float32, buffer=nl.sbuf)
    nisa.sendrecv(src=sent, dst=arrived, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=0)
    kept = middle * core
    _store_sum(partial[0][:, kept : kept + middle, :], arrived, y, 128 * kept)


def _store_sum(a: nl.NkiTensor, b: nl.NkiTensor, y: nl.NkiTensor, first: int) -> None:
    total = nl.ndarray(shape=a.shape, dtype=y.dtype, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=total, data1=a, data2=b, op=nl.add)
    store_rows([total[:, j, :] for j in range(a.shape[1])], y, first)
