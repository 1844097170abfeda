"""A stand-in for a compiler with faults, for FX graphs: it crashes, or is wrong, where rules say.

What a fault looks like in a graph is written down as a function; whether it strikes in a compile is
drawn from a seed. Everything else is executed as it stands. So the rest of the workshop can be
tried, and tested, where the culprit is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode

from dslearn.regions.lint import RULES, lint_graph

Find = Callable[[fx.GraphModule, Sequence[Any]], fx.Node | None]


class CompilerCrash(RuntimeError):
    """What the stand-in raises: a code and the pass of the compiler, as real ones do."""

    def __init__(self, code: str, stage: str) -> None:
        super().__init__(f"{code}: internal error in pass {stage}")
        self.code, self.stage = code, stage


@dataclass(frozen=True)
class Fault:
    """Something that the compiler does not bear.

    Attributes:
        find: (graph, inputs) -> the node where it is, None if it is not there.
        code: of the crash.
        stage: the pass that crashes.
        rate: probability per compile that it strikes.
        corrupt: value of that node -> another one; such a fault does not crash.
    """

    find: Find
    code: str = "NCC_STANDIN"
    stage: str = "Unnamed"
    rate: float = 1.0
    corrupt: Callable[[Any], Any] | None = None


class RuleCompiler:
    """A backend for torch.compile with `faults`; equal seeds fail on the same compiles.

    A new process starts again with the first draw.
    """

    def __init__(self, faults: Sequence[Fault], seed: int = 0) -> None:
        """Seed the draws."""
        self.faults = tuple(faults)
        self.compiles = 0
        self._random = Random(seed)

    def __call__(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile.

        Raises:
            CompilerCrash: a fault is there, and strikes.
        """
        self.compiles += 1
        corrupted: dict[fx.Node, Callable[[Any], Any]] = {}
        for fault in self.faults:
            strikes = self._random.random() < fault.rate  # drawn also where nothing is to be found
            node = fault.find(module, inputs) if strikes else None
            if node is None:
                continue
            if fault.corrupt is None:
                raise CompilerCrash(fault.code, fault.stage)
            corrupted[node] = fault.corrupt
        return _Corrupting(module, corrupted).run if corrupted else module.forward


class _Corrupting(fx.Interpreter):
    """Executes a graph, some of its values replaced."""

    def __init__(self, module: fx.GraphModule, corrupted: dict[fx.Node, Any]) -> None:
        super().__init__(module)
        self.corrupted = corrupted

    def run_node(self, n: fx.Node) -> Any:
        """Execute a node."""
        found = super().run_node(n)
        return self.corrupted[n](found) if n in self.corrupted else found


def operation(node: fx.Node) -> str:
    """What a node computes: `mul` for aten.mul.Tensor, operator.mul and the method mul."""
    packet = getattr(node.target, "overloadpacket", node.target)
    return packet if isinstance(packet, str) else getattr(packet, "__name__", str(packet))


def uses(name: str) -> Find:
    """Find the first operation of that name."""
    return lambda module, inputs: next(
        (node for node in module.graph.nodes if _computes(node, name)), None
    )


def feeds(first: str, second: str) -> Find:
    """Find an operation `second` that reads what an operation `first` computes."""
    return lambda module, inputs: next(
        (
            node
            for node in module.graph.nodes
            if _computes(node, second) and any(_computes(a, first) for a in node.all_input_nodes)
        ),
        None,
    )


def longer_than(limit: int) -> Find:
    """Find the operation that is one too many."""

    def find(module: fx.GraphModule, inputs: Sequence[Any]) -> fx.Node | None:
        computed = [n for n in module.graph.nodes if n.op.startswith("call_")]
        return computed[limit] if len(computed) > limit else None

    return find


def breaks(rule: str) -> Find:
    """Find the last operation of an ATen graph that breaks this rule of the graph lint.

    Raises:
        UsageError: when it compiles, if there is no such rule.
    """
    others = dict.fromkeys(RULES, "off") | {rule: "error"}

    def find(module: fx.GraphModule, inputs: Sequence[Any]) -> fx.Node | None:
        mode = FakeTensorMode()
        holders = module.graph.find_nodes(op="placeholder")
        for holder, given in zip(holders, inputs, strict=True):
            holder.meta["val"] = mode.from_tensor(given) if isinstance(given, Tensor) else given
        if not lint_graph(module, levels=others).findings:
            return None
        return [n for n in module.graph.nodes if n.op.startswith("call_")][-1]

    return find


def _computes(node: fx.Node, name: str) -> bool:
    return node.op.startswith("call_") and operation(node) == name
