"""Two cores of one launch: sendrecv, core_barrier.

Source: docs/reference/nki.md, section "Two cores".
"""

from __future__ import annotations

from typing import Any

from dslearn.sim.access import load, store
from dslearn.sim.isa import checks, descriptors
from dslearn.sim.isa.enums import dma_engine as movers
from dslearn.sim.isa.enums import engine as engines
from dslearn.sim.isa.enums import member
from dslearn.sim.memory import MemoryRegion
from dslearn.sim.program import NkiInstruction, current
from dslearn.sim.rules import ArgumentError, RuleError
from dslearn.sim.tensor import NkiTensor

# Largest exchange through GpSimd's own DMA, in bytes per partition, by bytes of an element.
GPSIMD_BYTES = {4: 1024, 2: 512, 1: 256}
WAITING = ("gpsimd", "tensor", "scalar", "vector", "sync")  # engines with semaphores


def core_barrier(
    data: NkiTensor, cores: Any, engine: Any = engines.gpsimd, name: str | None = None
) -> NkiInstruction:
    """Wait until both cores are here; what they did to shared HBM tensor `data` is ordered then.

    Only accesses to `data`: the barrier waits like an instruction that has `data` as its operand,
    and other engines go on. `cores` is (0, 1). On one core, `cores` is 0 or (0,) and nothing waits.

    Raises:
        RuleError: `data` is not in shared HBM (rule region).
        ArgumentError: other `cores`, or an engine that cannot wait.
        NkiValidationError: the other core ended, or waits for something else (rule lnc-barrier).
    """
    data = checks.tensor("core_barrier", "data", data)
    who = checks.choose("core_barrier", engine, WAITING)
    program = current()
    named = tuple(cores) if isinstance(cores, tuple | list) else (cores,)
    if program.launch.cores == 1 and named == (0,):
        return program.emit("core_barrier", who, (), (data,), name)
    if named != (0, 1):
        raise ArgumentError(f"core_barrier cores={cores!r}: only (0, 1)", rule="arguments")
    if program.launch.cores == 2 and data.buffer is not MemoryRegion.shared_hbm:
        raise RuleError(
            f"core_barrier data must be in ['shared_hbm'], got {data.buffer.value}: cores share "
            "nothing else",
            rule="region",
        )
    title = data.name or f"{data.shape} {data.dtype}"
    program.launch.meet(program.core, f"core_barrier on `{title}`", data.storage)
    return program.emit("core_barrier", who, (), (data,), name)


def sendrecv(  # noqa: PLR0913 - the vendor's signature
    src: NkiTensor,
    dst: NkiTensor,
    send_to_rank: int,
    recv_from_rank: int,
    pipe_id: int,
    dma_engine: Any = movers.dma,
    name: str | None = None,
) -> NkiInstruction:
    """Each core's `src` arrives in the other core's `dst`; both wait for it.

    SBUF tiles of one shape and dtype on both cores. It orders no accesses to HBM.

    Raises:
        RuleError: rules region, dtype, shape, operand (ranks, or too many bytes for gpsimd_dma).
        NkiValidationError: the other core ended, or waits for something else (rule lnc-barrier).
    """
    src = descriptors.sbuf("sendrecv", "src", src)
    dst = descriptors.sbuf("sendrecv", "dst", dst)
    checks.same_dtype("sendrecv", dst, src=src)
    if src.shape != dst.shape:
        raise RuleError(
            f"sendrecv src {src.shape} and dst {dst.shape} must have the same shape", rule="shape"
        )
    mover = member(movers, dma_engine, "sendrecv dma_engine")
    row, limit = checks.free(src) * src.itemsize, GPSIMD_BYTES[src.itemsize]
    if mover is movers.gpsimd_dma and row > limit:
        raise RuleError(
            f"sendrecv through gpsimd_dma of {row} bytes per partition of {src.dtype}: at most "
            f"{limit}; use dma_engine.dma",
            rule="operand",
        )
    program = current()
    launch, core = program.launch, program.core
    peer = 1 - core
    if launch.cores == 2 and (send_to_rank, recv_from_rank) != (peer, peer):
        raise RuleError(
            f"sendrecv on core {core} sends to {send_to_rank}, receives from {recv_from_rank}: "
            f"both must be the other core, {peer}",
            rule="operand",
        )
    launch.mail[core].append((src.dtype, load(src, "sendrecv src").copy()))
    launch.meet(core, f"sendrecv pipe {pipe_id}")
    kind, arrived = launch.mail[peer].popleft()
    if (kind, arrived.shape) != (dst.dtype, dst.shape):
        raise RuleError(
            f"sendrecv dst of core {core} is {dst.shape} {dst.dtype}, core {peer} sends "
            f"{arrived.shape} {kind}: both cores exchange the same kind of tile",
            rule="shape",
        )
    store(dst, arrived)
    who = "gpsimd" if mover is movers.gpsimd_dma else "dma"
    return program.emit("sendrecv", who, (dst,), (src,), name, pipe=pipe_id, mover=mover.name)
