"""When each instruction of a recording runs: every engine in order, all of them at once.

Each core has Tensor, Vector, Scalar and GpSimd with one list each, and queues for loads, stores and
moves in front of 16 DMA engines; they wait only where data demand it. The two cores of a launch
share nothing but the bandwidth of their HBM stack. Times are nanoseconds from the kernel's start.
Source: docs/performance.md, "How the model works".
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict, deque
from dataclasses import dataclass

from dslearn.sim.cost.dependencies import Edge, edges
from dslearn.sim.cost.dma import Transfer
from dslearn.sim.cost.rates import Rates
from dslearn.sim.cost.work import Work, work
from dslearn.sim.record import Instruction, Recording

Queue = tuple[int, str]  # core, name


@dataclass(slots=True)
class Step:
    """One instruction on the time line: `end` frees its queue, `finish` shows its result."""

    instruction: Instruction
    work: Work
    start: float = 0.0
    end: float = 0.0
    finish: float = 0.0
    cause: int = -1  # the step that it waited for last

    @property
    def queue(self) -> Queue:
        """Core and queue."""
        return self.instruction.core, self.work.queue


class _Heat:
    """The tensor engine runs at half speed until it was busy half of the last few us."""

    def __init__(self, rates: Rates) -> None:
        self.factor = rates.pe_cold_factor
        self.memory = rates.pe_warm_us * 1e3 / math.log(2)
        self.busy, self.last = 0.0, 0.0

    def stretch(self, start: float, ns: float) -> float:
        """How long work of `ns` takes that starts at `start`."""
        self.busy *= math.exp((self.last - start) / self.memory)
        took = ns * self.factor if self.busy < 0.5 else ns
        self.busy = 1 - (1 - self.busy) * math.exp(-took / self.memory)
        self.last = start + took
        return took


class _Machine:
    """The state of the queues while time goes on."""

    def __init__(self, recording: Recording, rates: Rates, waits: list[list[Edge]]) -> None:
        self.rates, self.steps = rates, _steps(recording, rates)
        self.waits = [0] * len(self.steps)  # edges not yet resolved
        self.ready = [0.0] * len(self.steps)
        self.followers: list[list[tuple[int, str]]] = [[] for _ in self.steps]
        self.queues: dict[Queue, deque[int]] = defaultdict(deque)
        self.free: dict[Queue, tuple[float, int]] = defaultdict(lambda: (0.0, -1))
        self.dma = [[0.0] * int(rates.dma_engines) for _ in recording.cores]
        self.heat = [_Heat(rates) for _ in recording.cores]
        self.hbm = 0.0
        self.heap: list[tuple[float, int]] = []
        self.cores = len(recording.cores)
        self.met: dict[tuple[str, str], tuple[float, int]] = {}  # who waits for the other core
        for number, found in enumerate(waits):
            self.waits[number] = len(found)
            for edge in found:
                self.followers[edge.before].append((number, edge.why))
        for number, step in enumerate(self.steps):
            self.queues[step.queue].append(number)

    def run(self) -> list[Step]:
        for queue in self.queues:
            self._offer(queue)
        while self.heap:
            time, number = heapq.heappop(self.heap)
            step = self.steps[number]
            if not step.work.meets or self.cores == 1:
                self._start(number, time)
                continue
            place = step.work.queue, step.instruction.name
            if place not in self.met:
                self.met[place] = time, number
                continue
            earlier, partner = self.met.pop(place)
            for one in (partner, number):
                self._start(one, max(time, earlier))
        stuck = [queue for queue, waiting in self.queues.items() if waiting]
        assert not stuck, f"queues {stuck} never moved on"
        return self.steps

    def _offer(self, queue: Queue) -> None:
        """Put the head of a queue on the heap if nothing but time holds it."""
        if self.queues[queue] and not self.waits[self.queues[queue][0]]:
            number = self.queues[queue][0]
            free, before = self.free[queue]
            if free > self.ready[number]:
                self.steps[number].cause = before
            heapq.heappush(self.heap, (max(free, self.ready[number]), number))

    def _start(self, number: int, time: float) -> None:
        step = self.steps[number]
        step.start, core, cost = time, step.instruction.core, step.work
        busy = self.heat[core].stretch(time, cost.busy) if cost.queue == "tensor" else cost.busy
        step.end = time + busy
        moved = step.end if cost.transfer is None else self._move(core, cost.transfer, step.end)
        step.finish = moved + cost.latency
        self.free[step.queue] = (step.end, number)
        for follower, why in self.followers[number]:
            self._release(follower, number, why)
        self.queues[step.queue].popleft()
        self._offer(step.queue)

    def _move(self, core: int, moved: Transfer, start: float) -> float:
        """When a DMA that is handed over at `start` has moved its last byte."""
        done, engines = start, self.dma[core]
        for engine in range(moved.first, moved.last):
            engines[engine] = max(engines[engine], start) + moved.ns
            done = max(done, engines[engine])
        through = moved.read + moved.written
        if through:
            self.hbm = max(self.hbm, start) + through / self.rates.hbm_stack_gbs
            done = max(done, self.hbm)
        return done

    def _release(self, follower: int, number: int, why: str) -> None:
        step, later = self.steps[number], self.steps[follower]
        # An engine works in order, so only what it reads from itself makes it wait.
        in_order = why != "read" and step.queue == later.queue and step.work.transfer is None
        time = step.end if in_order else step.finish
        if time >= self.ready[follower]:
            self.ready[follower], later.cause = time, number
        self.waits[follower] -= 1
        if not self.waits[follower] and self.queues[later.queue][0] == follower:
            self._offer(later.queue)


def _steps(recording: Recording, rates: Rates) -> list[Step]:
    """Every instruction with its cost; the first of a queue in a dynamic trip pays for the trip."""
    steps = []
    for core in recording.cores:
        trips: dict[str, tuple[tuple[int, int], ...]] = {}
        for one in core:
            cost = work(one, rates)
            if one.loops and trips.get(cost.queue) != one.loops:
                cost = cost._replace(busy=cost.busy + rates.loop_trip_us * 1e3)
            trips[cost.queue] = one.loops
            steps.append(Step(one, cost))
    return steps


def dependencies(recording: Recording) -> list[list[Edge]]:
    """For each instruction, core after core, those that it waits for; the same under all rates."""
    found: list[list[Edge]] = []
    for core in recording.cores:
        base = len(found)
        found += [[Edge(base + e.before, e.why) for e in waits] for waits in edges(core)]
    return found


def schedule(
    recording: Recording, rates: Rates, waits: list[list[Edge]] | None = None
) -> list[Step]:
    """The instructions of all cores with their times, in program order, core after core.

    Args:
        recording: what one launch executed.
        rates: the constants.
        waits: `dependencies(recording)`, when the same recording is modelled several times.
    Raises:
        UsageError: an instruction that the model has no cost for.
    """
    return _Machine(recording, rates, dependencies(recording) if waits is None else waits).run()
