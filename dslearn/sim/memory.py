"""Memories of one core, and the storage behind tensors: bytes, and which of them were written.

SBUF and PSUM are accounted as the hardware has them, in bytes per partition: a tile holds its
bytes while Python can reach it. A tile of up to 32 partitions takes one of four quadrants, up to
64 a half, more all of them; PSUM tiles are packed into banks that small tiles do not cross.
Source: docs/reference/nki.md, section "Memories".
"""

from __future__ import annotations

import enum
import itertools
import weakref
from typing import Any

import numpy as np

from dslearn.sim.dtypes import NUMPY, DType
from dslearn.sim.rules import RuleError
from dslearn.sim.values import whole

PARTITIONS = 128
SBUF_BYTES = 224 * 1024 - 16 * 1024  # usable per partition: the compiler keeps 16 KiB
PSUM_BANKS, BANK_BYTES = 8, 2048
QUADRANTS, QUADRANT = 4, 32
FILL_INTEGER = 4  # what the vendor's simulator leaves in integers nobody wrote; floats get NaN


class MemoryRegion(enum.Enum):
    """Where a tensor lives."""

    sbuf = "sbuf"
    psum = "psum"
    private_hbm = "private_hbm"
    shared_hbm = "shared_hbm"

    @property
    def on_chip(self) -> bool:
        """Whether engines reach it."""
        return self in (MemoryRegion.sbuf, MemoryRegion.psum)


_serial = itertools.count()


class Storage:
    """Bytes of one allocation; a mask tells which were written (None: all of them).

    On chip, `data` is [partitions, row_bytes] flattened; in HBM the row is the whole tensor.
    `pe` marks the bytes whose last writer was a matmul, `races` who touched shared bytes; `ended`
    has, for each core whose trip is over, the dynamic loop that it was allocated in.
    """

    __slots__ = (
        "__weakref__", "bank", "data", "ended", "name", "pe", "races", "region", "row_bytes",
        "rows", "serial", "written",
    )  # fmt: skip

    def __init__(self, data: np.ndarray, region: MemoryRegion, rows: int, name: str) -> None:
        self.data, self.region, self.rows, self.name = data, region, rows, name
        self.row_bytes = data.size // max(rows, 1)
        self.written: np.ndarray | None = None
        self.pe: np.ndarray | None = None
        self.races: np.ndarray | None = None
        self.bank = 0
        self.ended: dict[int, str] = {}
        self.serial = next(_serial)

    @classmethod
    def empty(
        cls, elements: int, dtype: DType, region: MemoryRegion, rows: int, name: str
    ) -> Storage:
        """Storage that nobody has written: floats hold NaN, integers 4, as at the vendor's."""
        kind = NUMPY[dtype]
        values = np.full(elements, FILL_INTEGER if kind.kind in "iu" else np.nan, kind)
        storage = cls(values.view(np.uint8), region, rows, name)
        storage.written = np.zeros(storage.data.size, np.uint8)
        return storage


class Budget:
    """Live bytes per partition of one core's SBUF (per quadrant) and PSUM (per bank)."""

    def __init__(self) -> None:
        self.sbuf = [0] * QUADRANTS
        self.psum = [0] * PSUM_BANKS
        self.peak = {"sbuf": 0, "psum": 0}

    def take(self, storage: Storage) -> None:
        """Reserve room for an on-chip storage until Python drops it.

        Raises:
            RuleError: no room.
        """
        sbuf = storage.region is MemoryRegion.sbuf
        pool = self.sbuf if sbuf else self.psum
        held = self._sbuf(storage) if sbuf else self._psum(storage)
        for slot, size in held:
            pool[slot] += size
        kind = storage.region.value
        self.peak[kind] = max(self.peak[kind], max(pool) if sbuf else sum(pool))
        weakref.finalize(storage, _release, pool, held).atexit = False

    def _sbuf(self, storage: Storage) -> list[tuple[int, int]]:
        width = -(-max(storage.rows, 1) // QUADRANT)
        width = 4 if width == 3 else width
        starts = range(0, QUADRANTS, width)
        start = min(starts, key=lambda s: max(self.sbuf[s : s + width]))
        live = max(self.sbuf[start : start + width])
        if live + storage.row_bytes > SBUF_BYTES:
            raise RuleError(
                f"SBUF is full: {_title(storage)} needs {storage.row_bytes} bytes per partition, "
                f"{live} of {SBUF_BYTES} are live; drop or shrink tiles, or loop over smaller ones",
                rule="sbuf-capacity",
            )
        return [(s, storage.row_bytes) for s in range(start, start + width)]

    def _psum(self, storage: Storage) -> list[tuple[int, int]]:
        need = storage.row_bytes
        banks = -(-need // BANK_BYTES)
        for start in range(PSUM_BANKS - banks + 1):
            free = BANK_BYTES - max(self.psum[start : start + banks])
            if free >= min(need, BANK_BYTES):
                storage.bank = self.psum[start] if banks == 1 else 0
                sizes = [min(BANK_BYTES, need - i * BANK_BYTES) for i in range(banks)]
                return list(zip(range(start, start + banks), sizes, strict=True))
        raise RuleError(
            f"PSUM is full: {_title(storage)} needs {need} bytes per partition, the {PSUM_BANKS} "
            f"banks of {BANK_BYTES} hold {self.psum}; copy results out and drop their tiles",
            rule="psum-capacity",
        )


def _release(pool: list[int], held: list[tuple[int, int]]) -> None:
    for slot, size in held:
        pool[slot] -= size


def _title(storage: Storage) -> str:
    return f"tile {storage.name!r}" if storage.name else "a tile"


def check_address(region: MemoryRegion, address: Any, rows: int, row_bytes: int) -> None:
    """Check an explicit (partition offset, byte offset) of an on-chip tile.

    Raises:
        RuleError: outside the memory, or PSUM off a bank boundary.
    """
    limit = SBUF_BYTES if region is MemoryRegion.sbuf else PSUM_BANKS * BANK_BYTES
    if not (isinstance(address, tuple) and len(address) == 2 and region.on_chip):
        raise RuleError(
            f"address={address!r}: a pair (partition offset, byte offset) of an on-chip tile",
            rule="address",
        )
    partition, offset = whole("address", address)
    inside = 0 <= partition <= PARTITIONS - rows and 0 <= offset <= limit - row_bytes
    if not inside or (region is MemoryRegion.psum and offset % BANK_BYTES):
        raise RuleError(
            f"address={address} of a tile of {rows} partitions x {row_bytes} bytes: {region.value} "
            f"has {PARTITIONS} partitions x {limit} bytes, PSUM tiles start at multiples of "
            f"{BANK_BYTES}",
            rule="address",
        )
