"""Recording ATen operations as they happen, on fake tensors or on real ones."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.weak import WeakIdKeyDictionary

from dslearn.regions.lint.origin import Origin
from dslearn.regions.lint.place import Place
from dslearn.regions.lint.trace import aten, describe


class Recorder(TorchDispatchMode):
    """Writes what is computed under it into `graph`; every node gets its `Value` and its `Place`.

    Args:
        graph: receives inputs, then operations.
        here: the line that is being executed.
        outside: what is known of a tensor that comes from outside.
    """

    def __init__(
        self,
        graph: fx.Graph,
        here: Callable[[], Place],
        outside: Callable[[Tensor], Origin] = lambda tensor: Origin(),
    ) -> None:
        super().__init__()
        self.graph, self.here, self.outside = graph, here, outside
        self._nodes = WeakIdKeyDictionary()
        self._inputs: list[fx.Node] = []

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim":  # asks what a tensor is, computes nothing
            return func(*args, **kwargs)
        if _is_made_of_others(func):  # in inference mode nothing has taken it apart
            with self:
                return func.decompose(*args, **kwargs)
        if func is aten.lift_fresh.default:  # a constant of the source, not an input
            return self.constant(args[0])
        given = self.nodes((tuple(args), kwargs))
        if torch.Tag.inplace_view in func.tags:
            self.before_reshaping(args[0])
        out = func(*args, **kwargs)
        self.add(func, given, out)
        return out

    def add(self, target: Any, given: tuple[Any, Any], out: Any) -> None:
        """Append an operation on nodes and constants `given` (args, kwargs) that gave `out`."""
        node = self.graph.create_node("call_function", target, *given)
        node.meta["place"] = self.here()
        self.show(node, out)
        if isinstance(out, list | tuple):
            for i, part in enumerate(out):
                if isinstance(part, Tensor):
                    item = self.graph.call_function(operator.getitem, (node, i))
                    self.know(item, part)
                    item.meta["place"] = node.meta["place"]
        elif isinstance(out, Tensor):
            self._nodes[out] = node

    def input(self, tensor: Tensor, origin: Origin) -> None:
        """Declare a tensor that comes from outside."""
        last = self._inputs[-1:]
        with self.graph.inserting_after(*last) if last else self.graph.inserting_before():
            node = self.graph.placeholder(f"input_{len(self._inputs)}")
        self._inputs.append(node)
        self.know(node, tensor)
        node.meta.update(origin._asdict())

    def meet(self, tensor: Tensor) -> None:
        """A tensor turns up that nothing here has made."""
        self.input(tensor, self.outside(tensor))

    def symbol(self, symbol: torch.SymInt | torch.SymFloat | torch.SymBool) -> Any:
        """What stands for a number that is known only when the graph runs."""
        return str(symbol)

    def before_reshaping(self, tensor: Tensor) -> None:
        """An operation such as `t_` is about to give `tensor` another shape."""

    def constant(self, tensor: Tensor) -> Tensor:
        """Append a constant of the source, and give what the function goes on with."""
        out: Tensor = aten.lift_fresh.default(tensor)
        self.add(aten.lift_fresh.default, ((), {}), out)
        return out

    def nodes(self, given: Any) -> Any:
        """`given`, with nodes in the place of tensors."""
        return tree_map(self._node, given)

    def show(self, node: fx.Node, out: Any) -> None:
        """Note what a node gave."""
        if isinstance(out, Tensor):
            node.meta["value"] = describe(out)

    def know(self, node: fx.Node, tensor: Tensor) -> None:
        """Let `node` stand for `tensor` from now on."""
        self.show(node, tensor)
        self._nodes[tensor] = node

    def _node(self, given: Any) -> Any:
        if isinstance(given, torch.SymInt | torch.SymFloat | torch.SymBool):
            return self.symbol(given)
        if not isinstance(given, Tensor):
            return given
        if given not in self._nodes:
            self.meet(given)
        return self._nodes[given]


@cache
def _is_made_of_others(func: Any) -> bool:
    """Whether torch has a formula in other operations for it and no kernel."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
