"""Who must wait for whom: through the bytes that instructions of one core share.

A read waits for the last writes of its bytes, a write for earlier writes and reads. Storage that is
used again makes its users wait; fresh tiles do not, until the memory is full: then a tile takes the
place of the tiles that were used longest ago and waits for their users. A tile allocated inside a
dynamic loop is the same memory in every trip, because the body is compiled once; and the trip
waits for the last register that was loaded before it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from typing import NamedTuple

from dslearn.sim.cost.geometry import Region, covers, overlap, region
from dslearn.sim.memory import BANK_BYTES, PSUM_BANKS, QUADRANT, QUADRANTS, SBUF_BYTES, MemoryRegion
from dslearn.sim.record import Instruction, Operand

PAGE = 18  # HBM is looked at in pages of 2^18 bytes, so that big tensors have short histories
ROOM = {
    MemoryRegion.sbuf: SBUF_BYTES * QUADRANTS,
    MemoryRegion.psum: BANK_BYTES * PSUM_BANKS,
}


class Edge(NamedTuple):
    """The instruction waited for, and why: read (its result), order (its place), room (memory)."""

    before: int
    why: str


class _History:
    """Accesses to one storage, or one page, that later ones may depend on."""

    __slots__ = ("reads", "writes")

    def __init__(self) -> None:
        self.reads: list[tuple[Region, int]] = []
        self.writes: list[tuple[Region, int]] = []

    def read(self, place: Region, index: int, edges: dict[int, str]) -> None:
        for other, before in self.writes:
            if before != index and overlap(place, other):
                edges[before] = "read"
        self.reads.append((place, index))

    def write(self, place: Region, index: int, edges: dict[int, str]) -> None:
        for found in (self.writes, self.reads):
            kept = []
            for entry in found:
                other, before = entry
                if before != index and overlap(place, other):
                    edges.setdefault(before, "order")
                    if covers(place, other):
                        continue
                kept.append(entry)
            found[:] = kept
        self.writes.append((place, index))


def edges(instructions: list[Instruction]) -> list[list[Edge]]:
    """For each instruction of one core, the earlier ones it waits for."""
    names = _names(instructions)
    rooms = _Rooms(instructions, names)
    changed = {names.get(o.storage, o.storage) for i in instructions for o in _written(i)}
    histories: dict[tuple[int, int], _History] = defaultdict(_History)
    found, register = [], -1
    for index, one in enumerate(instructions):
        waits: dict[int, str] = dict.fromkeys(one.after, "read")
        if one.loops and register >= 0:  # whether the trip happens, and where, is in registers
            waits[register] = "read"
        if one.name == "register_load":
            register = index
        for o, write in _accesses(one):
            storage = names.get(o.storage, o.storage)
            if storage not in changed:
                continue
            place = region(o)
            for page in _pages(o, place):
                history = histories[storage, page]
                (history.write if write else history.read)(place, index, waits)
        for before in rooms.place(index, one):
            waits.setdefault(before, "room")
        found.append([Edge(before, why) for before, why in waits.items()])
    return found


def _written(one: Instruction) -> tuple[Operand, ...]:
    return one.inputs if one.name == "core_barrier" else one.outputs


def _accesses(one: Instruction) -> Iterator[tuple[Operand, bool]]:
    """Operands and whether they are written; a barrier orders everything around its tensor."""
    for o in one.inputs:
        yield o, one.name == "core_barrier"
    for o in one.outputs:
        yield o, True


def _pages(o: Operand, place: Region) -> range:
    if o.region.on_chip:
        return range(1)
    return range(place.low >> PAGE, (place.high - 1 >> PAGE) + 1)


def _names(instructions: list[Instruction]) -> dict[int, int]:
    """Tiles that live in one trip of a dynamic loop -> the tile of the first trip they repeat."""
    scope: dict[int, tuple[tuple[int, int], ...]] = {}
    order: list[int] = []
    for one in instructions:
        for o in (*one.outputs, *one.inputs):
            if not o.region.on_chip:
                continue
            if o.storage not in scope:
                scope[o.storage] = one.loops
                order.append(o.storage)
            elif scope[o.storage] and scope[o.storage] != one.loops:
                known = zip(scope[o.storage], one.loops, strict=False)
                common = [a for a, b in known if a == b]
                scope[o.storage] = scope[o.storage][: len(common)]
    count: dict[tuple[tuple[int, int], ...], int] = defaultdict(int)
    first: dict[tuple[int, int], int] = {}
    names: dict[int, int] = {}
    for storage in order:
        if scope[storage]:
            number = count[scope[storage]]
            count[scope[storage]] += 1
            names[storage] = first.setdefault((scope[storage][-1][0], number), storage)
    return names


class _Rooms:
    """On-chip memory as a rotation: a new tile takes the room of those unused for longest."""

    def __init__(self, instructions: list[Instruction], names: dict[int, int]) -> None:
        self.names = names
        self.last: dict[int, int] = {}  # tile -> last instruction that uses it
        self.size: dict[int, tuple[MemoryRegion, int]] = {}
        for index, one in enumerate(instructions):
            for o in (*one.outputs, *one.inputs):
                if o.region.on_chip:
                    storage = names.get(o.storage, o.storage)
                    self.last[storage] = index
                    self.size.setdefault(storage, (o.region, _size(o)))
        self.users: dict[int, dict[str, int]] = {}  # tile -> its last user on each engine
        self.used = dict.fromkeys(ROOM, 0)
        self.dead: dict[MemoryRegion, deque[int]] = {r: deque() for r in ROOM}

    def place(self, index: int, one: Instruction) -> list[int]:
        """Make room for the tiles that `one` is the first to touch; whom that has to wait for."""
        waits: list[int] = []
        tiles = (self.names.get(o.storage, o.storage) for o in _on_chip(one))
        for storage in dict.fromkeys(tiles):
            if storage not in self.users:
                waits += self._take(storage)
            self.users[storage][one.engine] = index
            if self.last[storage] == index:
                self.dead[self.size[storage][0]].append(storage)
        return waits

    def _take(self, storage: int) -> list[int]:
        memory, size = self.size[storage]
        waits: list[int] = []
        while self.used[memory] + size > ROOM[memory] and self.dead[memory]:
            old = self.dead[memory].popleft()
            self.used[memory] -= self.size[old][1]
            waits += self.users[old].values()
        self.used[memory] += size
        self.users[storage] = {}
        return waits


def _on_chip(one: Instruction) -> list[Operand]:
    return [o for o in (*one.outputs, *one.inputs) if o.region.on_chip]


def _size(o: Operand) -> int:
    """Bytes of the tile: in SBUF times the quadrants of 32 partitions that it takes."""
    if o.region is MemoryRegion.psum:
        return o.row_bytes
    quadrants = -(-o.rows // QUADRANT)
    return o.row_bytes * (4 if quadrants == 3 else quadrants)
