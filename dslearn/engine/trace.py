"""What one decode step calls: kernels, their twins, and what the model still does itself.

Kernels and twins are counted by `dslearn.ops`. The rest is counted by a profiling hook that knows
the functions of `OWN`, so that the model carries no counters.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from dslearn import backend, ops
from dslearn.engine.lm import LM, PREFILL_CHUNK
from dslearn.errors import UsageError
from dslearn.formats import numpy_rows, rows
from dslearn.formats.records import Record
from dslearn.model import arith, attention, compressor, engram, engram_hash, hyper, indexer, moe
from dslearn.model import rope as rotary
from dslearn.model.step import attention as step_attention
from dslearn.model.step import engram as step_engram
from dslearn.model.step import entries, experts, parts, streams
from dslearn.sim import cost, recording

# What the model computes itself where no kernel serves, by the name of its operation if it has one.
# A product counts where a weight meets rows, joined or not; the streams' own is part of `hc_mixes`.
OWN: dict[str, tuple[Callable[..., Any], ...]] = {
    "linear": (arith.Arith.linear, parts.weighted),
    "fake_fp8": (rows.fake_fp8, numpy_rows.fake_fp8),
    "grouped": (arith.Arith.grouped, step_attention._grouped),
    "rmsnorm": (arith.rms_norm, parts.norm),
    "rope": (rotary.rotate, parts.rotate),
    "sparse_attn": (attention.attend, step_attention.attend),
    "kv_store": (Record.pack, step_attention._window),
    "compress_pool": (compressor.pooled, entries._latent),
    "index_score": (indexer.index_scores, entries.index_scores),
    "index_topk": (indexer.select, indexer.candidate_blocks, entries.candidate_blocks),
    "hc_mixes": (hyper.sinkhorn, streams.coefficients),
    "hc_collapse": (hyper._collapsed, streams.collapse),
    "hc_expand": (hyper._expanded, streams.expand),
    "router": (moe.Router.forward, experts.route),
    "swiglu": (moe.clamped_swiglu,),
    "engram_hash": (engram_hash.EngramHash.rows, step_engram.table_rows),
    "engram_rows": (engram.Table.forward,),
    "engram_gate": (engram.gate_logits, step_engram.engram),
}
NUMPY = "dslearn.model.step", numpy_rows.__name__


@dataclass(frozen=True)
class Line:
    """An operation's calls in one step. Path: "kernel", "twin", "torch" or "numpy"."""

    op: str
    path: str
    calls: int
    us: float | None = None  # modelled, launches not counted


def step(lm: LM, ids: list[int]) -> list[Line]:
    """The operations of the step of the last of `ids`, kernels first.

    Args:
        lm: a model; the backend in force serves it.
        ids: tokens of one sequence; those before the last are computed untraced.
    """
    state = lm.new_state(1, len(ids))
    for begin in range(0, len(ids) - 1, PREFILL_CHUNK):
        lm.forward([ids[begin : min(begin + PREFILL_CHUNK, len(ids) - 1)]], state)
    with ops.collect() as taken, recording() as launches, _counted() as own:
        lm.forward([[ids[-1]]], state)
    rates = cost.load()
    times: dict[str, float] = defaultdict(float)
    for launch in launches:
        times[launch.kernel] += cost.profile_recording(launch, rates).us
    lines = [
        Line(op, path, calls, times[op] if path == "kernel" and op in times else None)
        for op, paths in taken.counts().items()
        for path, calls in paths.items()
    ]
    return lines + [Line(op, path, calls) for (op, path), calls in own.items()]


@contextmanager
def _counted() -> Iterator[Counter[tuple[str, str]]]:
    """Calls of the functions in `OWN` inside the block, by operation and path, in that order."""
    names: dict[CodeType, tuple[str, str]] = {}
    for op, functions in OWN.items():
        for function in functions:
            path = "numpy" if function.__module__.startswith(NUMPY) else "torch"
            names[function.__code__] = op, path
    calls = Counter(dict.fromkeys(names.values(), 0))

    def called(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code in names:
            calls[names[frame.f_code]] += 1

    before = sys.getprofile()
    if before is not None and not callable(before):  # a profiler in C before Python 3.12
        raise UsageError("--trace needs Python's profiling hook: run it without a profiler")
    sys.setprofile(called)
    try:
        yield calls
    finally:
        sys.setprofile(before)
        for name in [name for name, count in calls.items() if not count]:
            del calls[name]


def show(lines: list[Line], position: int) -> str:
    """The lines as a table, with what it means below."""
    width = max(len(line.op) for line in lines)
    table = [f"one step at position {position}, backend {backend.current().name}"]
    table.append(f"{'op':{width}}  path    calls    modelled")
    for line in lines:
        time = "-" if line.us is None else f"{line.us:,.1f} µs"
        table.append(f"{line.op:{width}}  {line.path:6}  {line.calls:5}  {time:>10}")
    timed = [line for line in lines if line.us is not None]
    if timed:
        calls, us = sum(line.calls for line in timed), sum(line.us or 0.0 for line in timed)
        launch = cost.load().launch_us
        table.append(f"{'kernels':{width}}          {calls:5}  {f'{us:,.1f} µs':>10}")
        table.append(f"modelled, not measured, without {launch:g} µs for each launch")
    if any(line.path in ("torch", "numpy") for line in lines):
        table.append("torch, numpy: computed by the model itself, no kernel is called")
    return "\n".join(table)
