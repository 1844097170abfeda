"""What Dynamo captures of a function."""

from __future__ import annotations

import torch


def captured(function, *given):
    """Dynamo's graph of a function."""
    seen = []

    def backend(module, examples):
        seen.append(module)
        return module.forward

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(function, backend=backend, fullgraph=True, dynamic=False)(*given)
    return seen[0]
