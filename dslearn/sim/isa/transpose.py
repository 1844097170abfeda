"""nc_transpose: exchange partitions and elements of a tile.

Source: docs/reference/nki.md, section "Data movement".
"""

from __future__ import annotations

from typing import Any

from dslearn.sim.access import load, store
from dslearn.sim.isa import checks
from dslearn.sim.isa.enums import engine as engines
from dslearn.sim.isa.enums import member
from dslearn.sim.memory import MemoryRegion
from dslearn.sim.program import NkiInstruction, current
from dslearn.sim.rules import RuleError
from dslearn.sim.tensor import NkiTensor

LARGEST = {"tensor": 128, "vector": 32}


def nc_transpose(
    dst: NkiTensor, data: NkiTensor, engine: Any = engines.unknown, name: str | None = None
) -> NkiInstruction:
    """dst[f, p] = data[p, f], bits, free dimensions flattened; same dtype.

    The tensor engine reads SBUF, writes PSUM and takes up to 128 x 128 (it multiplies by an
    identity); Vector takes up to 32 x 32 in either memory.

    Raises:
        RuleError: rules region, dtype, shape, engine (too big, or memories), psum-bank, operand
            (1-byte elements side by side), ...
    """
    dst = checks.tile("nc_transpose", "dst", dst)
    data = checks.tile("nc_transpose", "data", data)
    checks.same_dtype("nc_transpose", dst, data=data)
    if member(engines, engine, "nc_transpose engine") is engines.tensor:
        checks.tile("nc_transpose", "dst", dst, checks.PSUM)
        checks.tile("nc_transpose", "data", data, checks.SBUF)
    p, f = data.shape[0], checks.free(data)
    if (dst.shape[0], checks.free(dst)) != (f, p):
        raise RuleError(
            f"nc_transpose of data {data.shape} gives [{f}, {p}], dst has shape {dst.shape}",
            rule="shape",
        )
    through = data.buffer is MemoryRegion.sbuf and dst.buffer is MemoryRegion.psum
    fits = {
        who: max(p, f) <= size and (through or who == "vector") for who, size in LARGEST.items()
    }
    allowed = tuple(who for who, fit in fits.items() if fit)
    if not allowed:
        raise RuleError(
            f"nc_transpose of {data!r} to {dst!r}: the tensor engine takes up to 128 x 128 from "
            "SBUF to PSUM, Vector up to 32 x 32 from and to either",
            rule="engine",
        )
    if packs_bytes(dst):
        allowed = allowed[::-1]  # Vector packs
    who = checks.choose("nc_transpose", engine, allowed, f" for [{p}, {f}] in these memories")
    if who == "tensor":
        checks.one_bank("nc_transpose", dst)
        every_second_byte("nc_transpose", dst)
    values = load(data, "nc_transpose data").reshape(p, f).T
    store(dst, values.reshape(dst.shape), pe=who == "tensor")
    return current().emit("nc_transpose", who, (dst,), (data,), name, transpose=True, p=p, f=f)


def packs_bytes(dst: NkiTensor) -> bool:
    """Whether `dst` has 1-byte elements side by side, which the tensor engine cannot write."""
    steps = [s for n, s in zip(dst.shape[1:], dst.strides[1:], strict=True) if n > 1]
    return dst.itemsize == 1 and bool(steps) and steps[-1] != 2


def every_second_byte(op: str, dst: NkiTensor) -> None:
    """Check that a transpose of 1-byte elements into PSUM leaves every second byte free.

    Raises:
        RuleError: they lie side by side (rule operand).
    """
    if packs_bytes(dst):
        raise RuleError(
            f"{op} dst {dst!r} packs its bytes: the tensor engine writes 1-byte elements as 16-bit "
            "words; allocate (P, N, 2) and pass t[:, :, 0]",
            rule="operand",
        )
