"""From the graph of Dynamo, in torch's own functions, to ATen operations.

Stores stay stores. AOTAutograd, the usual way to ATen, turns `pool.index_copy_(0, rows, x)` into a
new pool and one `copy_` back at the end of the graph: on a CPU a cache of gigabytes is then written
twice for one row, whatever `keep_inference_input_mutations` says. (A device's compiler folds the
pair into the buffer that it aliases, and does so from this graph as well, since its backend calls
AOTAutograd itself.) Without gradients nothing needs the functional form, so it is never made.

`make_fx` gives the same operations, but takes longer, and a warm-up builds dozens of graphs. The
recorder is the lint's.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import disable_autocast_cache
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
    PropagateUnbackedSymInts,
)
from torch.utils._pytree import tree_map

from dslearn.errors import GraphError
from dslearn.regions.lint.origin import Origin, of_input
from dslearn.regions.lint.place import UNKNOWN, Place
from dslearn.regions.lint.record import Recorder
from dslearn.regions.lint.trace import aten, place, writes

Known = Callable[[fx.Node, Tensor], Origin]


def to_aten(module: fx.GraphModule) -> fx.GraphModule:
    """The ATen graph of a graph that Dynamo captured, for compilation; see `trace`.

    Raises:
        GraphError: a number that changes between calls is an input; or see `trace`.
    """
    for node in module.graph.find_nodes(op="placeholder"):
        given = _example(node)
        if not isinstance(given, Tensor):
            raise GraphError(
                f"{node.name} is an input without a fixed value, {given}: regions have fixed "
                "shapes; compile with dynamic=False and pass what changes as a tensor"
            )
    return trace(module, of_input, fixed=True)


def trace(module: fx.GraphModule, origin: Known, *, fixed: bool = False) -> fx.GraphModule:
    """Dynamo's graph, or AOTAutograd's, run on its own fake tensors and written down in ATen.

    Nodes have their fake tensors in `meta["val"]` and their line in `meta["place"]`, inputs their
    `Origin`. Inputs keep their order; those that are no tensors are left out.

    Args:
        module: a graph with fake tensors.
        origin: what is known of an input.
        fixed: every number in it must be known; else unknown ones are written as text, for reading.

    Raises:
        GraphError: a number is not known, or a tensor comes from nowhere.
    """
    graph = fx.Graph()
    run = _Run(module, graph, fixed)
    inputs = module.graph.find_nodes(op="placeholder")
    given = [_example(node) for node in inputs]
    for node, example in zip(inputs, given, strict=True):
        if isinstance(example, Tensor):
            run.recorder.input(example, origin(node, example))
    # What the graph makes itself is to be as fake as its inputs.
    fake = next((one.fake_mode for one in given if hasattr(one, "fake_mode")), FakeTensorMode())
    symbols = fake.shape_env
    with (
        torch.no_grad(),
        disable_autocast_cache(),  # it has casts of weights that were made before
        fake,
        symbols.ignore_fresh_unbacked_symbols() if symbols else nullcontext(),
        run.recorder,
    ):
        result = run.run(*given)
    graph.output(run.recorder.nodes(result))
    _without_detaching(graph)
    root = nn.Module()
    for name, value in run.recorder.constants.items():
        root.register_buffer(name, value)
    return fx.GraphModule(root, graph)


class _Run(PropagateUnbackedSymInts):
    """Runs a graph on fake tensors, under a recorder."""

    def __init__(self, module: fx.GraphModule, graph: fx.Graph, fixed: bool) -> None:
        super().__init__(module)
        self.extra_traceback = False  # errors name their line themselves
        self._place = UNKNOWN
        self.recorder = _OfFakes(graph, lambda: self._place)
        self.recorder.fixed = fixed

    def run_node(self, n: fx.Node) -> Any:
        """Execute a node; kernels and other closed boxes are recorded without looking inside."""
        self._place = place(n)
        if not isinstance(n.target, torch._ops.HigherOrderOperator):
            bound = "unbacked_bindings" in n.meta
            return super().run_node(n) if bound else fx.Interpreter.run_node(self, n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        out = _example(n)
        self.recorder.add(n.target, self.recorder.nodes((args, kwargs)), out)
        return out

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        """A constant of the graph, as fake as its inputs are; or the name of a nested graph."""
        value = super().get_attr(target, args, kwargs)
        return self.recorder.attribute(value)[1] if isinstance(value, Tensor) else target


class _OfFakes(Recorder):
    """Keeps the fake tensors, and constants as attributes of the graph."""

    def __init__(self, graph: fx.Graph, here: Callable[[], Place]) -> None:
        super().__init__(graph, here)
        self.constants: dict[str, Tensor] = {}
        self.fixed = False

    def attribute(self, value: Tensor) -> tuple[fx.Node, Tensor]:
        """Append a constant; -> its node, and the fake tensor that the trace goes on with."""
        name = f"constant{len(self.constants)}"
        self.constants[name] = value
        node, fake = self.graph.get_attr(name), torch._guards.active_fake_mode()
        node.meta["place"] = self.here()
        shown = fake.from_tensor(value) if fake else value
        self.know(node, shown)
        return node, shown

    def constant(self, tensor: Tensor) -> Tensor:
        """Append what copies a constant of the source in every call: it may be written to."""
        (node, _), copy = self.attribute(tensor), aten.lift_fresh_copy.default
        out: Tensor = copy(tensor)
        self.add(copy, ((node,), {}), out)
        return out

    def meet(self, tensor: Tensor) -> None:
        """No input is missing in Dynamo's graph."""
        path, line = self.here()
        raise GraphError(
            f"{path}:{line}: a tensor {tensor.dtype} {list(tensor.shape)} is no input of the graph "
            "and nothing in it makes it: pass it as an argument"
        )

    def symbol(self, symbol: torch.SymInt | torch.SymFloat | torch.SymBool) -> Any:
        """A number that follows from fixed shapes, or the symbol's text."""
        if not self.fixed:
            return str(symbol)
        kinds = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
        try:
            return kinds[type(symbol)](symbol)
        except GuardOnDataDependentSymNode:
            path, line = self.here()
            raise GraphError(
                f"{path}:{line}: {symbol} is known only when the graph runs, and regions have "
                "fixed shapes: keep values on the device, with torch.where, a mask or topk"
            ) from None

    def show(self, node: fx.Node, out: Any) -> None:
        """Note what a node gave."""
        node.meta["val"] = out

    def before_reshaping(self, tensor: Tensor) -> None:
        """Let the nodes that gave `tensor` keep the shape that it had."""
        before = aten.detach.default(tensor)
        for node in self.graph.nodes:
            node.meta["val"] = tree_map(lambda x: before if x is tensor else x, node.meta["val"])


def _without_detaching(graph: fx.Graph) -> None:
    """Take out the `detach` that torch's functions are full of and that do nothing here.

    They stay where one more object makes a difference: if it is given, written or reshaped.
    """
    if any(torch.Tag.inplace_view in getattr(node.target, "tags", ()) for node in graph.nodes):
        return
    for node in graph.find_nodes(op="call_function", target=aten.detach.default):
        if not any(user.op == "output" or node in writes(user) for user in node.users):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def _example(node: fx.Node) -> Any:
    return node.meta.get("example_value", node.meta.get("val"))
