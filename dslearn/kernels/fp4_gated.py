"""One fp4 product per expert, for the experts that have something to do: by flags, by a list."""

from __future__ import annotations

from collections.abc import Callable

import nki
import nki.isa as nisa
import nki.language as nl

from dslearn.kernels.expert_parts import at_expert, listed, near
from dslearn.kernels.fp4_linear import APART, HALF, ROOM, codes_of, scaled, selectors, word_parts
from dslearn.kernels.linear_parts import LANES, columns, my_tiles, pipeline, powers, product

# at(t, start, size): a part of one expert's share t[e] of a tensor [E, ...] in HBM.
At = Callable[[nl.NkiTensor, tuple[int, ...], tuple[int, ...]], nl.NkiTensor]
Loaded = tuple[list[nl.NkiTensor], nl.NkiTensor]  # of some tiles: their codes and scales


def _known(expert: int) -> At:
    """Parts of an expert whose number is known when the kernel is compiled."""

    def at(t: nl.NkiTensor, start: tuple[int, ...], size: tuple[int, ...]) -> nl.NkiTensor:
        part = t[expert]
        for d in range(len(size)):
            part = part.slice(dim=d, start=start[d], end=start[d] + size[d])
        return part

    return at


def _from_list(order: nl.NkiTensor, index: nisa.VirtualRegister) -> At:
    """Parts of the expert at a place of the list."""
    expert = listed(order, index)
    return lambda t, start, size: at_expert(t, expert, start, size)


def _computing(
    x: nl.NkiTensor, words: nl.NkiTensor, power: nl.NkiTensor, y: nl.NkiTensor
) -> Callable[[At], None]:
    """compute(at): y[e] = x · W[e]ᵀ; what all experts share is made here, once."""
    rows, runs, sets = x.shape[0], words.shape[3], power.shape[2]
    groups = my_tiles(words.shape[2], max(1, ROOM // (runs * LANES * 2)))
    chosen = selectors()
    turned = columns(x, 0, rows, runs * APART, APART)

    def make(loaded: Loaded, i: int) -> nl.NkiTensor:
        parts, scales = loaded
        tile = scales[:, :, i * LANES : (i + 1) * LANES]
        return scaled(codes_of(parts, i), tile, chosen)

    def finish(weights: nl.NkiTensor, result: nl.NkiTensor, i: int) -> None:
        sums = product(weights, turned)
        nisa.tensor_copy(dst=result[:, i, :], src=sums, engine=nisa.engine.scalar)

    def compute(at: At) -> None:
        def load(group: tuple[int, int]) -> Loaded:
            start, count = group
            scales = at(power, (0, 0, start * LANES), (LANES, sets, count * LANES))
            factors = powers(scales, nl.bfloat16)
            size = (LANES, count, runs, HALF, APART)
            packed = nl.ndarray(shape=(*size[:3], LANES * 2), dtype=nl.uint8, buffer=nl.sbuf)
            nisa.dma_copy(dst=packed.reshape(size), src=at(words, (0, start, 0, 0, 0), size))
            return word_parts(packed.view(nl.uint32)), factors

        target = at(y, (0, 0), y.shape[1:])
        pipeline(target, (0, rows), groups, 1, (load, make, finish))

    return compute


def filling(y: nl.NkiTensor) -> Callable[[At], None]:
    """fill(at): y[e] = 0, this core's half of the columns."""
    _, rows, outputs = y.shape
    cores, core = nl.num_programs(), nl.program_id(axis=0)
    start, stop = outputs * core // cores, outputs * (core + 1) // cores
    zeros = nl.ndarray(shape=(rows, stop - start), dtype=y.dtype, buffer=nl.sbuf)
    nisa.memset(dst=zeros, value=0.0)

    def fill(at: At) -> None:
        nisa.dma_copy(dst=at(y, (0, start), (rows, stop - start)), src=zeros)

    return fill


def _once(action: Callable[[At], None], expert: int) -> Callable[[nisa.VirtualRegister], None]:
    """The body of a loop of no or one trip."""

    def body(index: nisa.VirtualRegister) -> None:
        action(_known(expert))

    return body


@nki.jit
def fp4_gated(
    x: nl.NkiTensor, words: nl.NkiTensor, power: nl.NkiTensor, active: nl.NkiTensor, outputs: int
) -> nl.NkiTensor:
    """y[e] = x · W[e]ᵀ for experts with a flag, 0 for the others; W in e2m1 codes, packed.

    Dimensions:
        E experts; M rows, 1 to 128; K inputs; N outputs, at least 2. T tiles of 128 outputs, S runs
        of 512 inputs, Q sets of 128 blocks of 32 inputs.
    Args:
        x: [M, K] bf16, in HBM.
        words: [E, 128, T, S, 64, 4] uint8, each expert as `place_fp4` puts it, in HBM.
        power: [E, 128, Q, 128 T] uint8, scale bytes 1 to 254, in HBM.
        active: [1, E] int32, in HBM: not 0 for an expert that is wanted.
        outputs: N; tiles beyond it are padding.
    Returns:
        y: [E, M, N] bf16, in shared HBM.
    Notes:
        A branch on the device is a loop of no or one trip, and each expert has two: one computes,
        one writes zeros, 2 M N bytes. So an expert that no row uses costs a fill, and its part of y
        is written, not left as memory was. Both cores read the same flags and take the same path,
        each for half of the outputs. Every expert's code is in the kernel, wanted or not: E times
        the instructions of one. `fp4_active` has them once. Decoding, and what is exact: see
        `fp4_linear`.
    Pseudocode:
        for each expert e, when compiling:
            active[e] != 0 times: y[e] = x · W[e]ᵀ
            active[e] == 0 times: y[e] = 0
    """
    experts = words.shape[0]
    y = nl.ndarray(shape=(experts, x.shape[0], outputs), dtype=x.dtype, buffer=nl.shared_hbm)
    compute, fill = _computing(x, words, power, y), filling(y)
    given = nl.ndarray(shape=(1, experts), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=given, src=active)
    for wanted, action in ((nl.not_equal, compute), (nl.equal, fill)):
        flags = nl.ndarray(shape=(1, experts), dtype=nl.int32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=flags, data=given, op0=wanted, operand0=0)
        for e in range(experts):
            trips = nisa.register_alloc()
            nisa.register_load(dst=trips, src=flags[:, e : e + 1])

            nl.fori_loop(lower=0, upper=trips, body_fun=_once(action, e))
    return y


@nki.jit
def fp4_active(
    x: nl.NkiTensor,
    words: nl.NkiTensor,
    power: nl.NkiTensor,
    order: nl.NkiTensor,
    count: nl.NkiTensor,
    outputs: int,
) -> nl.NkiTensor:
    """y[e] = x · W[e]ᵀ for the first `count` experts of a list, 0 for the rest of it.

    Dimensions:
        E experts; M rows, 1 to 128; K inputs; N outputs, at least 2. T, S, Q as in `fp4_gated`.
    Args:
        x: [M, K] bf16, in HBM.
        words: [E, 128, T, S, 64, 4] uint8, in HBM.
        power: [E, 128, Q, 128 T] uint8, in HBM.
        order: [E, 1] int32, in HBM: every expert once, the active ones first.
        count: [1, 1] int32, in HBM: how many are active, 0 to E.
        outputs: N; tiles beyond it are padding.
    Returns:
        y: [E, M, N] bf16, in shared HBM.
    Notes:
        Two loops over one list: the first computes, the second fills. The number of trips is the
        number of active experts, and weights and results are found by a runtime offset, so the
        kernel is as long as for one expert, and time goes with the active ones: 0.10 ms modelled
        for each of 5120 x 4608, bound by Vector and GpSimd as `fp4_linear` is.
    Pseudocode:
        for e in order[:count]: y[e] = x · W[e]ᵀ
        for e in order[count:]: y[e] = 0
    """
    experts = words.shape[0]
    y = nl.ndarray(shape=(experts, x.shape[0], outputs), dtype=x.dtype, buffer=nl.shared_hbm)
    compute, fill = _computing(x, words, power, y), filling(y)
    active = nisa.register_alloc()
    nisa.register_load(dst=active, src=count)
    listing = near(order)
    nl.fori_loop(lower=0, upper=active, body_fun=lambda index: compute(_from_list(listing, index)))
    nl.fori_loop(
        lower=active, upper=experts, body_fun=lambda index: fill(_from_list(listing, index))
    )
    return y
