"""Recording ATen operations as they happen, on fake tensors or on real ones."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import PropagateUnbackedSymInts
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.weak import WeakIdKeyDictionary

from dslearn.regions.lint.place import Place, of_text
from dslearn.regions.lint.trace import Trace, aten, describe


class Origin(NamedTuple):
    """An input: its name, whether it is a weight, whether it lives in host memory."""

    name: str = "a tensor of the surrounding code"
    weight: bool = False
    host: bool = False


class Recorder(TorchDispatchMode):
    """Writes what is computed under it into `trace`.

    Args:
        trace: receives the operations.
        here: the line that is being executed.
        outside: what is known of a tensor that comes from outside.
    """

    def __init__(
        self, trace: Trace, here: Callable[[], Place], outside: Callable[[Tensor], Origin]
    ) -> None:
        super().__init__()
        self.trace, self.here, self.outside = trace, here, outside
        self._nodes = WeakIdKeyDictionary()
        self._last_input: fx.Node | None = None

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is aten.lift_fresh.default:  # a constant of the source, not an input
            given: tuple[Any, Any] = ((), {})
        else:
            given = tree_map(self._node, (tuple(args), dict(kwargs or {})))
        out = func(*args, **(kwargs or {}))
        self.add(func, given, out)
        return out

    def add(self, target: Any, given: tuple[Any, Any], out: Any) -> None:
        """Append an operation on nodes and constants `given` (args, kwargs) that gave `out`."""
        node = self.trace.graph.create_node("call_function", target, *given)
        node.meta["place"] = self.here()
        if isinstance(out, list | tuple):
            for i, part in enumerate(out):
                if isinstance(part, Tensor):
                    item = self.trace.graph.call_function(operator.getitem, (node, i))
                    self._know(item, part)
                    item.meta["place"] = node.meta["place"]
        elif isinstance(out, Tensor):
            self._know(node, out)

    def input(self, tensor: Tensor, origin: Origin) -> None:
        """Declare a tensor that comes from outside."""
        graph = self.trace.graph
        last = self._last_input
        with graph.inserting_after(last) if last else graph.inserting_before():
            node = graph.placeholder("input")
        self._last_input = node
        self._know(node, tensor)
        node.meta.update(origin._asdict())

    def nodes(self, given: Any) -> Any:
        """`given`, with nodes in the place of tensors."""
        return tree_map(self._node, given)

    def _know(self, node: fx.Node, tensor: Tensor) -> None:
        node.meta["value"] = describe(tensor)
        self._nodes[tensor] = node

    def _node(self, given: Any) -> Any:
        if isinstance(given, torch.SymInt | torch.SymFloat | torch.SymBool):
            return str(given)
        if not isinstance(given, Tensor):
            return given
        if given not in self._nodes:
            self.input(given, self.outside(given))
        return self._nodes[given]


class Replay(PropagateUnbackedSymInts):
    """Runs a graph of `torch.compile` on its own fake tensors, under a `Recorder`."""

    def __init__(self, module: fx.GraphModule, trace: Trace) -> None:
        super().__init__(module)
        self._current: fx.Node | None = None
        self.recorder = Recorder(trace, self._here, lambda tensor: Origin())

    def run_node(self, n: fx.Node) -> Any:
        """Execute a node; kernels and other closed boxes are recorded without looking inside."""
        self._current = n
        if not isinstance(n.target, torch._ops.HigherOrderOperator):
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        out = n.meta.get("example_value", n.meta.get("val"))
        self.recorder.add(n.target, self.recorder.nodes((args, kwargs)), out)
        return out

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        """A constant that belongs to the graph, as fake as its inputs are."""
        value, fake = super().get_attr(target, args, kwargs), torch._guards.active_fake_mode()
        return fake.from_tensor(value) if fake and isinstance(value, Tensor) else value

    def _here(self) -> Place:
        return of_text(self._current.meta.get("stack_trace") if self._current else None)
