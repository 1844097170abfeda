"""What a schedule says: time, who was busy, bytes, shares of the limits, the critical path."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from dslearn.sim.cost.rates import Rates
from dslearn.sim.cost.schedule import Step, schedule
from dslearn.sim.memory import PARTITIONS
from dslearn.sim.record import Recording

ENGINES = ("tensor", "vector", "scalar", "gpsimd")
TITLES = {"tensor": "Tensor", "vector": "Vector", "scalar": "Scalar", "gpsimd": "GpSimd"}


@dataclass(frozen=True)
class Link:
    """A part of the critical path: steps of one kind, and the time that passed in them."""

    queue: str
    name: str
    count: int
    us: float
    share: float


@dataclass(frozen=True)
class Profile:
    """The modelled run of one kernel. Times are us; nothing was measured."""

    kernel: str
    cores: int
    us: float  # the kernel alone
    launch_us: float
    busy_us: dict[str, tuple[float, ...]]  # engine -> per core; "dma" is the mean of its engines
    counts: dict[str, int]  # instructions by name
    hbm_read: int
    hbm_written: int
    moved: int  # bytes through DMA engines
    macs: int
    hbm_share: float  # of the bandwidth these cores have
    pe_share: float  # of the 16-bit peak of these cores
    peaks: tuple[dict[str, int], ...]  # bytes per partition: sbuf, psum
    path: tuple[Link, ...]
    steps: tuple[Step, ...]

    @property
    def total_us(self) -> float:
        """Kernel and launch."""
        return self.us + self.launch_us

    @property
    def bound(self) -> str:
        """One sentence: what limits this kernel."""
        if not self.path:
            return "bound by nothing: no instruction was executed"
        shares = {TITLES[e]: max(self.busy_us[e]) / self.us for e in ENGINES}
        shares["the DMA engines"] = max(self.busy_us["dma"]) / self.us
        shares["HBM"] = self.hbm_share
        name, share = max(shares.items(), key=lambda item: item[1])
        if share >= 0.7:
            return f"bound by {name}: busy {share:.0%} of the modelled time"
        first = self.path[0]
        return (
            f"bound by waiting: nothing is busy more than {share:.0%} ({name}); "
            f"{first.share:.0%} of the critical path is {first.name} on {first.queue}"
        )


def profile_recording(recording: Recording, rates: Rates) -> Profile:
    """Model one launch.

    Raises:
        UsageError: an instruction that the model has no cost for.
    """
    steps = schedule(recording, rates)
    ns = max((s.finish for s in steps), default=0.0)
    counts: dict[str, int] = defaultdict(int)
    for step in steps:
        counts[step.instruction.name] += 1
    moves = [s.work.transfer for s in steps if s.work.transfer is not None]
    read, written = sum(m.read for m in moves), sum(m.written for m in moves)
    macs, cores = _macs(steps), len(recording.cores)
    bandwidth = rates.hbm_stack_gbs * cores / 2
    return Profile(
        kernel=recording.kernel,
        cores=cores,
        us=ns / 1e3,
        launch_us=rates.launch_us,
        busy_us={e: _busy(steps, e, cores) for e in ENGINES} | {"dma": _dma(steps, cores, rates)},
        counts=dict(counts),
        hbm_read=read,
        hbm_written=written,
        moved=sum(m.nbytes for m in moves),
        macs=macs,
        hbm_share=(read + written) / bandwidth / ns if ns else 0.0,
        pe_share=macs / (PARTITIONS**2 * rates.pe_ghz * cores) / ns if ns else 0.0,
        peaks=tuple(recording.peaks),
        path=_path(steps),
        steps=tuple(steps),
    )


def _macs(steps: list[Step]) -> int:
    found = [s.instruction for s in steps if s.instruction.name == "nc_matmul"]
    return sum(
        i.details["k"] * i.details["m"] * i.details["n"]
        for i in found
        if not i.details["is_transpose"]
    )


def _busy(steps: list[Step], engine: str, cores: int) -> tuple[float, ...]:
    total = [0.0] * cores
    for step in steps:
        if step.work.queue == engine:
            total[step.instruction.core] += (step.end - step.start) / 1e3
    return tuple(total)


def _dma(steps: list[Step], cores: int, rates: Rates) -> tuple[float, ...]:
    total = [0.0] * cores
    for step in steps:
        moved = step.work.transfer
        if moved is not None:
            share = (moved.last - moved.first) / rates.dma_engines
            total[step.instruction.core] += moved.ns * share / 1e3
    return tuple(total)


def _path(steps: list[Step]) -> tuple[Link, ...]:
    """Back from the last result: each step owns the time from its start to the next one's."""
    at = max(range(len(steps)), key=lambda i: steps[i].finish, default=-1)
    if at < 0:
        return ()
    whole = until = steps[at].finish
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    while at >= 0:
        step = steps[at]
        times[step.work.queue, step.instruction.name].append(until - step.start)
        until, at = step.start, step.cause
    links = [
        Link(queue, name, len(ns), sum(ns) / 1e3, sum(ns) / whole if whole else 0.0)
        for (queue, name), ns in times.items()
    ]
    return tuple(sorted(links, key=lambda link: -link.us))
