"""Graphs that `torch.compile` makes: counted, and run as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx


class Graphs:
    """A compiled function and the graphs that it has become so far."""

    def __init__(self, function: Callable[..., Any]) -> None:
        torch._dynamo.reset()
        self.made: list[fx.GraphModule] = []
        self.call = torch.compile(function, backend=self._keep, fullgraph=True, dynamic=False)

    def _keep(self, graph: fx.GraphModule, _: Any) -> Any:
        self.made.append(graph)
        return graph.forward

    def __call__(self, *arguments: Any) -> Any:
        with torch.no_grad():
            return self.call(*arguments)

    def operations(self, graph: int) -> set[str]:
        """What one of the graphs calls, such as `dslearn.rmsnorm.default`."""
        return {str(node.target) for node in self.made[graph].graph.nodes}


def captured(function: Callable[..., Any], *given: Any) -> fx.GraphModule:
    """Dynamo's graph of a function."""
    graphs = Graphs(function)
    graphs(*given)
    return graphs.made[0]
