"""Writing operations on bytes into a graph, with the fake tensor that each one gives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

from dslearn.regions import codes
from dslearn.regions.lint.trace import aten, place


class Writer:
    """Appends to `graph`; every new node carries the line of `line`, the node it stands for."""

    def __init__(self, fake: FakeTensorMode) -> None:
        self.graph = fx.Graph()
        self.constants: dict[str, Tensor] = {}
        self.line: fx.Node | None = None
        self._fake = fake

    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """target(*args, **kwargs), run on fake tensors."""
        node = self.graph.call_function(target, args, kwargs)
        if self.line is not None:
            node.meta["place"] = place(self.line)
        given, named = tree_map_only(fx.Node, lambda one: one.meta["val"], (args, kwargs))
        with self._fake:
            node.meta["val"] = target(*given, **named)
        return node

    def constant(self, name: str, value: Tensor) -> fx.Node:
        """A tensor that belongs to the graph; the same name is the same tensor."""
        self.constants[name] = value
        node = self.graph.get_attr(name)
        node.meta["val"] = self._fake.from_tensor(value)
        return node

    def decode(self, bytes_: fx.Node, kind: torch.dtype, to: torch.dtype) -> fx.Node:
        """The cast of carried values from `kind` to `to`."""
        table = self.constant(f"{_name(kind)}_as_{_name(to)}", codes.decoding(kind, to))
        rows = self.call(aten._to_copy.default, bytes_, dtype=torch.int32)
        return self.call(aten.index.Tensor, table, [rows])

    def encode(self, x: fx.Node, kind: torch.dtype) -> fx.Node:
        """The cast of plain numbers to `kind`, as bytes."""
        encoding = codes.encoding(kind)
        bounds = self.constant(f"{_name(kind)}_bounds", encoding.bounds)
        table = self.constant(f"{_name(kind)}_codes", encoding.codes)
        wide = self.call(aten._to_copy.default, x, dtype=torch.float32)
        magnitude = self.call(aten.abs.default, wide)
        count = self.call(aten.bucketize.Tensor, magnitude, bounds, out_int32=True, right=True)
        nan, minus = (
            self.call(aten._to_copy.default, self.call(ask, x), dtype=torch.int32)
            for ask in (aten.isnan.default, aten.signbit.default)
        )
        row = self.call(aten.add.Tensor, count, nan)
        row = self.call(aten.add.Tensor, row, minus, alpha=len(encoding.codes) // 2)
        return self.call(aten.index.Tensor, table, [row])

    def arranged(self, node: fx.Node, like: Tensor) -> fx.Node:
        """`node` with the strides that the value had before it was carried."""
        shown = node.meta["val"]
        if not isinstance(shown, Tensor) or shown.stride() == like.stride():
            return node
        sizes = list(like.shape), list(like.stride())
        kinds = {"dtype": shown.dtype, "device": shown.device}
        empty = self.call(aten.empty_strided.default, *sizes, **kinds)
        return self.call(aten.copy_.default, empty, node)


def _name(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")
