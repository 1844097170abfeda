"""One layer of the released width for `benchmarks.regions`, and how many bytes of its pools move.

Random weights, 8 of its 384 experts (2 GB); it compresses and selects: all of a layer but Engram.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.layer_parts import RELEASED
from dslearn import Numerics
from dslearn.model.arith import Arith
from dslearn.model.block import Block
from dslearn.model.call import Call
from dslearn.model.plan import Given
from dslearn.model.ring import Span
from dslearn.model.rope import RopeTable
from dslearn.model.state import State

LAYER, EXPERTS, POSITION = 8, 8, 4096


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
