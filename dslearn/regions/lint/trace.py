"""A function as the rules see it: the inputs and the ATen operations of one call, in order.

Every node of the graph has its `Value` and its `Place`, or what they are read from: torch's `val`
and `stack_trace`. In-place operations are kept as they are written, so that a rule sees which input
is overwritten where.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx

from dslearn.regions.lint.place import UNKNOWN, Place, of_text

aten = torch.ops.aten
Found: TypeAlias = tuple[str, Place, str]


@dataclass(frozen=True)
class Value:
    """What is known of a tensor; sizes that depend on data count as 0."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    device: torch.device
    contiguous: bool
    storage: int

    @property
    def numel(self) -> int:
        """Elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.numel * self.dtype.itemsize

    @property
    def span(self) -> range:
        """Bytes of the storage from the first element to the last."""
        reach = sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))
        first = self.offset * self.dtype.itemsize
        return range(first, first + (reach + 1) * self.dtype.itemsize)


def describe(tensor: Tensor) -> Value:
    """The `Value` of a tensor, real or fake."""
    shape, stride = (tuple(_int(n) for n in part) for part in (tensor.shape, tensor.stride()))
    known = all(isinstance(n, int) for n in tensor.shape)
    return Value(
        dtype=tensor.dtype,
        shape=shape,
        stride=stride,
        offset=_int(tensor.storage_offset()),
        device=tensor.device,
        contiguous=not known or tensor.is_contiguous(),
        storage=tensor.untyped_storage()._cdata,
    )


def _int(number: int | torch.SymInt) -> int:
    return number if isinstance(number, int) else 0


@dataclass
class Trace:
    """One traced call.

    Attributes:
        graph: placeholders, then operations as written.
        hits: what tracing itself found: (rule, place, message).
    """

    graph: fx.Graph = field(default_factory=fx.Graph)
    hits: list[Found] = field(default_factory=list)

    @property
    def inputs(self) -> list[fx.Node]:
        """The tensors that the caller, a module or a closure hands in, if used."""
        return [node for node in self.graph.nodes if node.op == "placeholder"]

    @property
    def operations(self) -> list[fx.Node]:
        """Everything that is computed."""
        return [node for node in self.graph.nodes if node.op == "call_function"]

    def used(self, node: fx.Node) -> Place:
        """Where an input is first used."""
        return next((place(user) for user in node.users if place(user) != UNKNOWN), UNKNOWN)


def value(node: Any) -> Value | None:
    """The tensor that `node` stands for; None for numbers and lists."""
    if not isinstance(node, fx.Node):
        return None
    if "value" not in node.meta:
        shown = node.meta.get("val")
        node.meta["value"] = describe(shown) if isinstance(shown, Tensor) else None
    found: Value | None = node.meta["value"]
    return found


def place(node: fx.Node) -> Place:
    """The line that computes `node`."""
    if "place" not in node.meta:
        node.meta["place"] = of_text(node.meta.get("stack_trace"))
    found: Place = node.meta["place"]
    return found


def name(node: fx.Node) -> str:
    """`mul` for a node of aten.mul.Tensor; in-place forms without their underscore; '' for none."""
    packet = getattr(node.target, "overloadpacket", None)
    if getattr(node.target, "namespace", "") != "aten" or packet is None:
        return ""
    plain: str = packet.__name__
    return plain.removesuffix("_") if writes(node) else plain


def writes(node: fx.Node) -> list[fx.Node]:
    """The nodes whose memory an operation overwrites."""
    schema = getattr(node.target, "_schema", None)
    found = []
    for i, argument in enumerate(schema.arguments if schema is not None else ()):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        given = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name)
        found += [one for one in _flat(given) if isinstance(one, fx.Node)]
    return found


def _flat(given: Any) -> Iterator[Any]:
    if isinstance(given, list | tuple):
        for one in given:
            yield from _flat(one)
    else:
        yield given


def is_view(node: fx.Node) -> bool:
    """Whether a node is its first argument seen otherwise, without a copy."""
    return bool(getattr(node.target, "is_view", False))


def is_pointwise(node: fx.Node) -> bool:
    """Whether every element of the result comes from the elements in its place."""
    tags = getattr(node.target, "tags", ())
    return torch.Tag.pointwise in tags or name(node) in ("_to_copy", "copy")


def root(node: fx.Node) -> fx.Node:
    """Whose memory a node shows: what its chain of views and in-place operations starts from."""
    while True:
        first = node.args[0] if node.args else None
        split = isinstance(first, fx.Node) and is_view(first)  # whose parts are views as well
        viewed = is_view(node) or (node.target is operator.getitem and split)
        below = first if viewed else next(iter(writes(node)), None)
        if not isinstance(below, fx.Node):
            return node
        node = below


def overwritten(trace: Trace) -> dict[fx.Node, fx.Node]:
    """Input -> the first operation that overwrites it or a view of it."""
    found: dict[fx.Node, fx.Node] = {}
    for node in trace.operations:
        for target in writes(node):
            source = root(target)
            if source.op == "placeholder":
                found.setdefault(source, node)
    return found
