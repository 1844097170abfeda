"""Fused training kernels: the elementwise parts of the model through `torch.compile`.

Streams, norms, gates and masks are memory-bound chains of small operations; fused they take a
fifth of the time (a C++ compiler is needed, as for any CPU `torch.compile`). The functions are
the library's own, only compiled.
"""

from __future__ import annotations

import torch

from dslearn.model import Model, attention, attention_dense, block, indexer
from dslearn.model.engram import Engram
from dslearn.model.hyper import HyperConnection

_FUNCTIONS = (
    (block, "collapse"),
    (block, "expand"),
    (attention, "index_scores"),
    (attention, "rotate"),
    (indexer, "rotate"),
    (attention_dense, "index_loss"),
)


def compile_parts(model: Model) -> None:
    """Compile the memory-bound parts of `model` in place (process-wide for the functions)."""
    torch._dynamo.config.cache_size_limit = 64
    for module, name in _FUNCTIONS:
        setattr(module, name, torch.compile(getattr(module, name), dynamic=False))
    for part in model.modules():
        if isinstance(part, HyperConnection | Engram):
            part.compile(dynamic=False)
