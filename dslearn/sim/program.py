"""The core that is executing: its id, its memories, its instruction list, its partner.

A launch on two cores runs two threads that take turns: a core runs until it waits for the other at
a barrier or exchange, or ends. So a simulation has one order, whatever the machine, and conflicts
between barriers are found from who touched which bytes, not from who came first.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import numpy as np

from dslearn.sim.memory import Budget, Storage
from dslearn.sim.record import Instruction, offset_tiles, operand
from dslearn.sim.rules import ArgumentError, NkiValidationError
from dslearn.sim.tensor import NkiTensor


class Launch:
    """What the cores of one launch share: HBM allocations, exchanges, whose turn it is."""

    def __init__(self, cores: int, grid: bool = False, kernel: str = "") -> None:
        self.cores, self.grid, self.kernel = cores, grid, kernel
        self.shared: list[NkiTensor] = []  # shared_hbm tensors in order of allocation
        self.mail: list[deque[Any]] = [deque() for _ in range(cores)]  # sent, not yet received
        # What each core waits at, and the tensor whose accesses that orders.
        self.waiting: list[tuple[str, Storage | None] | None] = [None] * cores
        self.done = [False] * cores
        self.failed: BaseException | None = None
        self._turn = 0
        self._condition = threading.Condition()

    def start(self, core: int) -> None:
        """Block until it is this core's turn."""
        with self._condition:
            self._condition.wait_for(lambda: self._turn == core or self.failed is not None)

    def finish(self, core: int, error: BaseException | None = None) -> None:
        """This core has ended; the other one may go on."""
        with self._condition:
            self.done[core] = True
            self.failed = self.failed or error
            self._turn = 1 - core
            self._condition.notify_all()

    def meet(self, core: int, place: str, data: Storage | None = None) -> None:
        """Wait until the other core is at `place` too; what both did to `data` is ordered then.

        Raises:
            NkiValidationError: it ended, or waits somewhere else, or there is no other core.
        """
        if self.cores == 1:
            raise NkiValidationError(
                f"{place} on one core: launch the kernel with kernel[2](...)", rule="lnc-barrier"
            )
        other = 1 - core
        with self._condition:
            self.waiting[core] = (place, data)
            if self.waiting[other] is None and not self.done[other]:
                self._turn = other
                self._condition.notify_all()
                self._condition.wait_for(lambda: self._turn == core or self.failed is not None)
                if self.failed is not None:
                    raise self.failed
                if self.waiting[core] is None:  # the other core came, and has gone on
                    return
            there = self.waiting[other]
            if there is None or there[0] != place or there[1] is not data:
                what = "has ended" if there is None else f"waits at {there[0]}"
                raise NkiValidationError(
                    f"core {core} waits at {place}, core {other} {what}", rule="lnc-barrier"
                )
            self.waiting = [None] * self.cores
            if data is not None:
                data.races = None


class Program:
    """One core of one launch."""

    def __init__(self, launch: Launch, core: int) -> None:
        self.launch, self.core = launch, core
        self.budget = Budget()
        self.instructions: list[Instruction] = []
        self.loops: list[tuple[int, int]] = []
        self.loop_count = 0
        self.born: list[Any] | None = None  # weak references to storages of this dynamic trip
        self.allocations = 0  # shared_hbm tensors so far
        self.reorder = True
        self.accumulators: dict[str, tuple[np.ndarray, np.ndarray]] = {}  # of each engine
        self.keep = True  # whether instructions are kept after they ran

    def emit(  # noqa: PLR0913 - the fields of an instruction
        self,
        name: str,
        engine: str,
        outputs: tuple[NkiTensor, ...],
        inputs: tuple[NkiTensor, ...],
        label: str | None = None,
        **details: Any,
    ) -> NkiInstruction:
        """Record one executed instruction and hand out its handle.

        Tiles that hold runtime offsets of operands are inputs too, after the others.
        """
        read = (*inputs, *(tile for t in (*outputs, *inputs) for tile in offset_tiles(t)))
        one = Instruction(
            name, engine, tuple(map(operand, outputs)), tuple(map(operand, read)), self.core,
            tuple(self.loops), details, label,
        )  # fmt: skip
        self.instructions.append(one)
        return NkiInstruction(one, len(self.instructions) - 1)


class NkiInstruction:
    """Opaque handle of an instruction; only good for ordering."""

    __slots__ = ("_index", "_instruction")

    def __init__(self, handle: Instruction, index: int = -1) -> None:
        self._instruction, self._index = handle, index

    def depends_on(self, *producers: NkiInstruction) -> NkiInstruction:
        """Run after `producers`; the simulator records it (it runs in program order anyway).

        Raises:
            ArgumentError: something else than what instructions return.
        """
        if not all(isinstance(p, NkiInstruction) for p in producers):
            raise ArgumentError(
                f"depends_on{producers}: give it handles that instructions return", "arguments"
            )
        self._instruction.after += [p._index for p in producers]
        return self


_local = threading.local()


def current() -> Program:
    """The program of this thread; outside a launch, one that lasts as long as the thread."""
    program = getattr(_local, "program", None)
    if program is None:
        program = _local.program = Program(Launch(1), 0)
    return program


def enter(program: Program | None) -> Program | None:
    """Make `program` this thread's; the previous one comes back."""
    previous = getattr(_local, "program", None)
    _local.program = program
    return previous
