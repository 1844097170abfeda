"""What a cached graph depends on, as one name.

The graph as Dynamo captured it, without the names of its nodes; shapes, strides, dtypes and shared
storages of its inputs; what torch is set to; options; versions; and all sources of this package: an
edit of a kernel's helper changes what a graph means and not its text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from dslearn.regions.opened import told
from dslearn.vendor import probe

_PACKAGE = Path(__file__).parents[1]
_AUTOCAST = ("cpu", "xla", torch._C._get_privateuse1_backend_name())  # where a graph may run


def key_of(module: fx.GraphModule, flags: Sequence[str]) -> str:
    """The name of a graph that Dynamo captured, compiled with `flags`."""
    parts = {
        "graph": text_of(module),
        "inputs": inputs_of(module),
        "torch": surroundings(),
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
    return told(node.target)


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
        said += " conj" * fake.is_conj() + " neg" * fake.is_neg()
        if storages.count(storage) > 1:
            said += f" shares {storages.index(storage)} at {fake.storage_offset()}"
        lines.append(said)
    return lines


def surroundings() -> list[str]:
    """What torch is set to in this thread, as far as tracing makes dtypes and casts of it."""
    casts = [
        f"{device} {torch.get_autocast_dtype(device)}"
        for device in _AUTOCAST
        if torch.is_autocast_enabled(device)
    ]
    exact = torch.are_deterministic_algorithms_enabled()
    return [str(torch.get_default_dtype()), str(torch.get_default_device()), str(exact), *casts]


@cache
def versions() -> dict[str, str]:
    """Versions of what makes graphs."""
    found = {name: probe(name) for name in ("neuronxcc", "torch_neuronx", "nki")}
    vendors = {name: one.detail for name, one in found.items() if one.real}
    return {"torch": torch.__version__, "dslearn": import_module("dslearn").__version__} | vendors


@cache
def digest_of_sources(package: Path) -> str:
    """SHA-256 of every source file."""
    total = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        total.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()
