"""Compiled regions beside eager code: time, pools, host timing, warm-up, lint; with targets.

    python -m benchmarks.regions [--rounds 5] [--threads 1] [--cpu-time]

On the CPU, where a graph runs torch operations as eager code does: a ratio above 1 is what guards
and plainer operations cost. Both sides take turns, the best round of each counts. One layer has the
released width, random weights and 8 of its 384 experts (2 GB); tiny is as shipped, and its eager
side is kept in torch, as graphs are. Graphs are kept in a folder of their own: none is found.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

import dslearn
from benchmarks.region_layer import LAYER, Copies, arguments, copied, released_layer
from dslearn import regions
from dslearn.lessons.copies import functional
from dslearn.model.arith import Arith
from dslearn.model.block import Block
from dslearn.model.plan import Given
from dslearn.regions.backend import dslearn_backend
from dslearn.regions.graph_runner import GraphRunner
from dslearn.regions.timing import OUTSIDE

ROWS = (1, 8)
MODES = ("eager", "regions")
SEQUENCES, MAX_LEN = 8, 512
STEPS = 20  # that host timing is taken of
Step = Callable[[], Any]


class Clock:
    """Turns of eager code and regions; the best of each counts."""

    def __init__(self, rounds: int, now: Callable[[], float]) -> None:
        self.rounds, self.now = rounds, now

    def turns(self, steps: dict[str, Step], calls: int) -> dict[str, float]:
        """Mode -> milliseconds of its step."""
        best = dict.fromkeys(steps, float("inf"))
        for _ in range(self.rounds):
            for mode, step in steps.items():
                with regions.use(mode):
                    best[mode] = min(best[mode], *(self.once(step) for _ in range(calls)))
        return {mode: 1e3 * seconds for mode, seconds in best.items()}

    def once(self, step: Step) -> float:
        """Seconds."""
        begin = self.now()
        step()
        return self.now() - begin


class InTorch(Arith):
    """The same arithmetic; a model with another `Arith` takes no step in NumPy."""


def tiny_step(rows: int) -> Step:
    """One token of `rows` sequences of 40, always the same one."""
    lm = dslearn.load("tiny")
    lm.model.arith.__class__ = InTorch
    state, ids = lm.new_state(rows, 64), torch.arange(3, 3 + 40 * rows).view(rows, 40)
    lm.forward(ids, state)

    def step() -> None:
        state.mark()
        lm.forward(ids[:, :1], state)
        state.rollback(40)

    return step


def told(what: str, found: str, target: str = "") -> None:
    """One line."""
    print(f"{what:48s} {found:>32s}" + (f"   target {target}" if target else ""), flush=True)


def compare(
    clock: Clock, what: str, steps: dict[str, Step], calls: int, target: str
) -> dict[str, float]:
    """Time both modes of a step, and say the ratio; -> milliseconds."""
    for mode, step in steps.items():
        with regions.use(mode):
            step()
    regions.warm()
    ms = clock.turns(steps, calls)
    regions.warm(False)
    both = f"{ms['eager']:.1f} and {ms['regions']:.1f} ms"
    told(f"{what}: eager, regions", f"{both}, {ms['regions'] / ms['eager']:.2f}x", target)
    return ms


def released(clock: Clock) -> None:
    """The layer of the released width."""
    layer = released_layer()
    for rows in ROWS:
        h, pre, given = arguments(layer, rows)

        @torch.inference_mode()
        def step(taken: tuple[Tensor, Tensor, Given] = (h, pre, given)) -> None:
            layer(*taken)

        compare(
            clock, f"layer {LAYER}, d 5120, rows {rows}", dict.fromkeys(MODES, step), 3, "1.10x"
        )
    sizes = [copied(layer, (h, pre, given), each) for each in (functional, dslearn_backend)]
    told("  its pools: functional, dslearn", f"{sizes[0]:,d} and {sizes[1]} bytes", "0 bytes")
    begin, operations = clock.now(), 0
    for half, taken in (
        (Block.attention_half, (h, pre, given.plan, given.pools)),
        (Block.expert_half, (h, pre, given.image)),
    ):
        report = dslearn.lint(half, layer, *taken)
        operations += report.operations
        assert not report.errors, report.findings
    found = f"{operations} operations, {clock.now() - begin:.1f} s"
    told("  lint of it", found, "5 s")


def tiny(clock: Clock) -> None:
    """All of tiny."""
    for rows in ROWS:
        steps = {}
        for mode in MODES:
            with regions.use(mode):
                steps[mode] = tiny_step(rows)
        ms = compare(clock, f"tiny, rows {rows}", steps, 5, "2.00x")
        with Copies() as counter:
            steps["eager"]()
        each = " and ".join(f"{1e3 * ms[mode] / counter.operations:.1f}" for mode in MODES)
        told(f"  per operation of {counter.operations}", f"{each} us")


def charged() -> None:
    """The share of a step's host time that no row of the ledger but the last explains."""
    lm = dslearn.load("tiny")
    for mode in (*MODES, "whole"):
        with regions.use(mode):
            state, ids = lm.new_state(1, 64), torch.arange(3, 43).view(1, 40)
            lm.forward(ids, state)
            lm.forward(ids[:, :1], state)  # what is compiled is compiled
            with regions.record() as ledger:
                for _ in range(STEPS):
                    lm.forward(ids[:, :1], state)
        rows = ledger.rows
        share = rows[OUTSIDE].seconds / sum(row.seconds for row in rows.values())
        told(f"tiny, {mode}: outside of what is charged", f"{share:.1%}", "5%")


def warm_up(clock: Clock) -> None:
    """Every bucket of tiny, and the chunk that prompts are read in."""
    regions.forget()
    runner = GraphRunner(dslearn.load("tiny").model, SEQUENCES, MAX_LEN)
    seconds = clock.once(runner.capture)
    made = f"buckets {', '.join(map(str, runner.buckets))}: {regions.report().graphs} graphs"
    told(f"tiny, warm-up of {made}", f"{seconds:.1f} s", "60 s")


def main() -> None:
    """Print all of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cpu-time", action="store_true", help="count CPU time on a busy machine")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clock = Clock(args.rounds, time.process_time if args.cpu_time else time.perf_counter)
    with TemporaryDirectory() as folder:
        os.environ["DSLEARN_CACHE_DIR"] = folder
        tiny(clock)
        charged()
        warm_up(clock)
        released(clock)


if __name__ == "__main__":
    main()
