"""Compiled regions beside eager code: time, bytes of pools, warm-up, lint; one run, with targets.

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
from collections.abc import Callable, Sequence
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import dslearn
from benchmarks.layer_parts import RELEASED
from dslearn import Numerics, regions
from dslearn.lessons.copies import functional
from dslearn.model.arith import Arith
from dslearn.model.block import Block
from dslearn.model.call import Call
from dslearn.model.plan import Given
from dslearn.model.ring import Span
from dslearn.model.rope import RopeTable
from dslearn.model.state import State
from dslearn.regions.backend import dslearn_backend
from dslearn.regions.graph_runner import GraphRunner

LAYER, EXPERTS, POSITION = 8, 8, 4096  # it compresses and selects: all of a layer but Engram
ROWS = (1, 8)
MODES = ("eager", "regions")
SEQUENCES, MAX_LEN = 8, 512
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


def released_layer() -> Block:
    """One layer of the released width with random weights."""
    cfg = replace(RELEASED, n_routed_experts=EXPERTS)
    rope = cfg.qk_rope_head_dim
    tables = {
        "local": RopeTable(rope, cfg.rope_theta, None),
        "compress": RopeTable(rope, cfg.compress_rope_theta, cfg.rope_scaling),
    }
    layer = Block(cfg, LAYER, Arith(Numerics(), 32), tables).requires_grad_(False)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    return layer


def arguments(layer: Block, rows: int) -> tuple[Tensor, Tensor, Given]:
    """What the layer is called with: a token of each of `rows` sequences, at POSITION."""
    cfg = layer.attn.cfg
    state = State(cfg, layer.arith.numerics, rows, POSITION + 64)
    positions = torch.full((rows,), POSITION)
    span = Span(positions, torch.ones_like(positions), 1, cfg.sliding_window)
    call = Call(layer.attn.tables, span, state, fixed=True)
    h, pre = torch.randn(rows, cfg.hc_mult, cfg.hidden_size), torch.ones(rows, cfg.hc_mult)
    return h, pre, layer.given(call, None, None)


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


class Copies(TorchDispatchMode):
    """Counts operations, and bytes of tensors like a pool that they make or overwrite.

    Like a pool: of its shape and dtype. Rows that are stored in a pool are no copy of it.
    """

    supports_higher_order_operators = True

    def __init__(self, pools: Sequence[Tensor] = ()) -> None:
        super().__init__()
        self.like = {(pool.shape, pool.dtype) for pool in pools}
        self.own = {pool.untyped_storage().data_ptr() for pool in pools}
        self.bytes = self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.operations += 1
        copies = func is torch.ops.aten.copy_.default
        for one in () if getattr(func, "is_view", False) else tree_leaves(out):
            if isinstance(one, Tensor) and (one.shape, one.dtype) in self.like:
                inside = one.untyped_storage().data_ptr() in self.own
                self.bytes += one.nbytes if copies or not inside else 0
        return out


@torch.inference_mode()
def copied(layer: Block, given: tuple[Tensor, Tensor, Given], backend: Any) -> int:
    """Bytes of pools that the graph of the attention half copies, as `backend` makes it."""
    h, pre, rest = given
    pools = [pool for pool in rest.pools or () if pool is not None and pool.dtype is torch.uint8]
    counter = Copies(pools)

    def watched(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        run = backend(module, inputs)

        def watch(*tensors: Tensor) -> Any:
            with counter:
                return run(*tensors)

        return watch

    torch._dynamo.reset()
    half = torch.compile(Block.attention_half, backend=watched, fullgraph=True, dynamic=False)
    half(layer, h, pre, rest.plan, rest.pools, None, None)
    assert counter.operations, "the graph ran under the counter"
    return counter.bytes


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
        warm_up(clock)
        released(clock)


if __name__ == "__main__":
    main()
