"""A schedule as JSON in the Chrome trace event format, which Perfetto and chrome://tracing show.

A process per core, a thread per engine. DMAs of one queue overlap, so each queue gets as many
threads as DMAs are in flight. Times are modelled.
"""

from __future__ import annotations

import json
from typing import Any

from dslearn.sim.cost.schedule import Step
from dslearn.sim.cost.summary import Profile

ORDER = ("tensor", "vector", "scalar", "gpsimd", "sync")


def lanes(steps: tuple[Step, ...]) -> dict[tuple[int, str], list[tuple[float, float, Step]]]:
    """(core, lane) -> (start, stop, step) in ns that do not overlap, by start."""
    found: dict[tuple[int, str], list[tuple[float, float, Step]]] = {}
    for step in sorted(steps, key=lambda s: s.start):
        core, queue = step.queue
        stop = step.end if step.work.transfer is None else step.finish
        number = 0
        while True:
            lane = found.setdefault((core, f"{queue} {number}" if number else queue), [])
            if not lane or lane[-1][1] <= step.start:
                lane.append((step.start, stop, step))
                break
            number += 1
    return found


def trace(profile: Profile) -> dict[str, Any]:
    """The trace as a dictionary; times in us, as the format wants."""
    events: list[dict[str, Any]] = []
    known = lanes(profile.steps)
    places = sorted(known, key=_rank)
    for core in range(profile.cores):
        title = f"core {core} (modelled)"
        events.append(
            {"ph": "M", "name": "process_name", "pid": core, "tid": 0, "args": {"name": title}}
        )
    for thread, (core, lane) in enumerate(places):
        events.append(
            {"ph": "M", "name": "thread_name", "pid": core, "tid": thread, "args": {"name": lane}}
        )
        for start, stop, step in known[core, lane]:
            events.append(_event(step, start, stop, thread))
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {"kernel": profile.kernel, "times": "modelled by dslearn, not measured"},
    }


def _rank(place: tuple[int, str]) -> tuple[int, int, str]:
    core, lane = place
    return core, ORDER.index(lane) if lane in ORDER else len(ORDER), lane


def _event(step: Step, start: float, stop: float, thread: int) -> dict[str, Any]:
    one = step.instruction
    shapes = [f"{list(o.shape)} {o.dtype} {o.region.value}" for o in (*one.outputs, *one.inputs)]
    return {
        "ph": "X",
        "name": one.label or one.name,
        "cat": step.work.queue,
        "pid": one.core,
        "tid": thread,
        "ts": start / 1e3,
        "dur": (stop - start) / 1e3,
        "args": {"instruction": one.name, "operands": shapes},
    }


def write(profile: Profile, path: str) -> None:
    """Write the trace to `path`."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump(trace(profile), file)
