"""Bytes that a graph writes, operation by operation: with stores as they are, or functional.

`cache_layout` makes the caches that `step` is called with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten
# As most backends get their graphs: stores become new tensors, and a copy back at the end.
functional = aot_autograd(
    fw_compiler=lambda module, inputs: module.forward, keep_inference_input_mutations=True
)


class _Counter(TorchDispatchMode):
    """Notes what each operation writes; views write nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[tuple[str, int]] = []

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            # A store gives its whole pool, of which it wrote the rows handed to it.
            made = args[3] if func is aten.index_copy_.default else out
            size = sum(one.nbytes for one in tree_leaves(made) if isinstance(one, Tensor))
            self.written.append((func.overloadpacket.__name__, size))
        return out


def written(
    backend: Callable[..., Any], function: Callable[..., Any], *inputs: Any
) -> list[tuple[str, int]]:
    """Operations of the graph that `backend` runs for `function(*inputs)`, with bytes written."""
    counter = _Counter()

    def watched(module: fx.GraphModule, given: Sequence[Any]) -> Callable[..., Any]:
        run = backend(module, given)

        def watch(*tensors: Tensor) -> Any:
            with counter:  # torch does not compile under such a mode, so it stands inside
                return run(*tensors)

        return watch

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(function, backend=watched, fullgraph=True, dynamic=False)(*inputs)
    return counter.written


def step(own: Tensor, other: Tensor, rows: Tensor, new: Tensor) -> Tensor:
    """Store new [R, 2, D] in a layer's cache own [N, 2, D], read a row of each of two layers."""
    own.index_copy_(0, rows, new)
    return own[0] + other[0]
