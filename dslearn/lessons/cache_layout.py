"""Two layouts of the caches of all layers, and what each costs when a graph writes them.

Shapes: N layers, T tokens (rows of a cache), F fields of a row, W width of a field.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._functorch._aot_autograd.utils import make_boxed_compiler
from torch._functorch.aot_autograd import aot_function

LAYOUTS = ("layer-major", "token-major")


def views(layout: str, layers: int, tokens: int, fields: int, width: int) -> list[Tensor]:
    """The caches [T, F, W] of all layers, zeros in one tensor: [N, T, F, W], or [T, N, F, W]."""
    if layout == "layer-major":
        return list(torch.zeros(layers, tokens, fields, width))
    return list(torch.zeros(tokens, layers, fields, width).unbind(1))


def copied(caches: Sequence[Tensor]) -> int:
    """Bytes that an executor copies on every call which takes contiguous inputs only."""
    return sum(cache.nbytes for cache in caches if not cache.is_contiguous())


def store(row: Tensor, at: Tensor, *caches: Tensor) -> Tensor:
    """Write row [1, F, W] to row at [1] of each cache, as one step does; -> row."""
    for cache in caches:
        cache.index_copy_(0, at, row)
    return row


def operations(caches: Sequence[Tensor]) -> Counter[str]:
    """The operations of `store` in the functional graph that a device's backend compiles."""
    found: Counter[str] = Counter()

    def keep(module: fx.GraphModule, _: Any) -> Any:
        nodes = (node for node in module.graph.nodes if node.op == "call_function")
        found.update(str(node.target) for node in nodes)
        return module.forward

    row, at = torch.ones(1, *caches[0].shape[1:]), torch.tensor([2])
    with torch.no_grad():
        aot_function(store, fw_compiler=make_boxed_compiler(keep))(row, at, *caches)
    return found
