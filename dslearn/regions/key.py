"""What a cached graph depends on, as one name.

The graph as Dynamo captured it, without the names of its nodes; shapes, strides, dtypes and shared
storages of its inputs; options; versions; and the sources of kernels, operations and of this
package: an edit of a kernel's helper changes what a graph means and not its text.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from dslearn.vendor import probe

_PACKAGE = Path(__file__).parents[1]
_SOURCES = ("kernels", "ops", "regions")


def key_of(module: fx.GraphModule, flags: Sequence[str]) -> str:
    """The name of a graph that Dynamo captured, compiled with `flags`."""
    parts = {
        "graph": text_of(module),
        "inputs": inputs_of(module),
        "flags": list(flags),
        "versions": versions(),
        "sources": digest_of_sources(_PACKAGE),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def text_of(module: fx.GraphModule) -> list[str]:
    """One line per node: what it does to which lines."""
    number = {node: f"%{i}" for i, node in enumerate(module.graph.nodes)}

    def line(node: fx.Node) -> str:
        target = (
            str(number[node]) if node.op in ("placeholder", "output") else _target(module, node)
        )
        given = fx.map_arg((node.args, node.kwargs), lambda one: _Shown(number[one]))
        return f"{node.op} {target} {given}"

    return [line(node) for node in module.graph.nodes]


class _Shown(str):
    """A string that stands in a tuple without quotes, as a node does."""

    __repr__ = str.__str__


def _target(module: fx.GraphModule, node: fx.Node) -> str:
    if isinstance(node.target, str):
        held = module.get_submodule if node.op == "call_module" else None
        value: Any = held(node.target) if held else getattr(module, node.target, None)
        if isinstance(value, Tensor):
            return f"{value.dtype}{list(value.shape)}{value.tolist()}"
        return f"{value!r}" if isinstance(value, nn.Module) else node.target
    target: Any = node.target
    if isinstance(target, torch._ops.OpOverload | torch._ops.HigherOrderOperator):
        return str(target)
    home = getattr(target, "__module__", None) or type(target).__module__
    title = f"{home}.{getattr(target, '__qualname__', target)}"
    if home.split(".")[0] in ("torch", "_operator", "operator", "builtins", "math"):
        return title
    return f"{title} {inspect.getsource(target)}"  # the user's own, opened when it is traced


def inputs_of(module: fx.GraphModule) -> list[str]:
    """What is known of each input; with the first input of its storage, where several share one."""
    fakes = [n.meta.get("example_value") for n in module.graph.find_nodes(op="placeholder")]
    storages = [f.untyped_storage()._cdata if isinstance(f, Tensor) else None for f in fakes]
    lines = []
    for fake, storage in zip(fakes, storages, strict=True):
        if not isinstance(fake, Tensor):
            lines.append(repr(fake))
            continue
        said = f"{fake.dtype} {tuple(fake.shape)} {fake.stride()} {fake.device}"
        if storages.count(storage) > 1:
            said += f" shares {storages.index(storage)} at {fake.storage_offset()}"
        lines.append(said)
    return lines


@cache
def versions() -> dict[str, str]:
    """Versions of what makes graphs."""
    found = {name: probe(name) for name in ("neuronxcc", "torch_neuronx", "nki")}
    vendors = {name: one.detail for name, one in found.items() if one.real}
    return {"torch": torch.__version__, "dslearn": import_module("dslearn").__version__} | vendors


@cache
def digest_of_sources(package: Path) -> str:
    """SHA-256 of every source file of kernels, operations and regions."""
    total = hashlib.sha256()
    for path in sorted(p for part in _SOURCES for p in (package / part).rglob("*.py")):
        total.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()
