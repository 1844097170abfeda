"""What a cached graph depends on, as one name.

The graph as Dynamo captured it, without the names of its nodes; shapes, strides, dtypes and shared
storages of its inputs; what torch is set to; options; versions; and all sources of this package: an
edit of a kernel's helper changes what a graph means and not its text.
"""

from __future__ import annotations

import dis
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from itertools import count
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_flatten

from dslearn.vendor import probe

_PACKAGE = Path(__file__).parents[1]
_KNOWN = ("torch", "_operator", "operator", "builtins", "math", "numpy", _PACKAGE.name)
_PLAIN = (int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_OPERATIONS = (
    torch._ops.OpOverload,
    torch._ops.OpOverloadPacket,
    torch._ops.HigherOrderOperator,
)
_NAMED = (ModuleType, type, FunctionType, BuiltinFunctionType)  # whose name says what they do
_RUN = os.urandom(8).hex()  # of this process: what cannot be named is the same in no other
_unnamed = count()
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
    target: Any = node.target
    if isinstance(target, _OPERATIONS):
        return str(target) + (f" {_unlike_any()}" if _is_opened(target) else "")
    home = _home(target) or type(target).__module__
    title = f"{home}.{getattr(target, '__qualname__', target)}"
    return title if _known(home) else f"{title} {_opened(target)}"


def _home(value: Any) -> str:
    """The module that a function was written in, whatever it says of itself; '' for none."""
    if isinstance(value, FunctionType):
        return str(value.__globals__.get("__name__", ""))
    return (
        value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", "") or ""
    )


def _known(home: str) -> bool:
    """Whether a module is told by the versions and the sources that are in the name."""
    return home.split(".")[0] in _KNOWN


def _is_opened(operation: Any) -> bool:
    """Whether it is a user's operation made of others, which are traced in its place."""
    packet = isinstance(operation, torch._ops.OpOverloadPacket)
    overloads = (
        [getattr(operation, one) for one in operation.overloads()] if packet else [operation]
    )
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    return any(
        isinstance(one, torch._ops.OpOverload)
        and one.namespace not in ("aten", "prims", "prim", _PACKAGE.name)
        and one.has_kernel_for_dispatch_key(composite)
        for one in overloads
    )


def _opened(function: Any, within: tuple[Any, ...] = ()) -> str:
    """The user's own function, opened when it is traced: its code, and the values that it reads.

    What has no code, or reads more than plain values and other functions, is like nothing else: its
    graph is built.
    """
    if function in within:
        return "itself"
    if not isinstance(function, FunctionType) or vars(function):
        return _unlike_any()
    codes = list(_codes(function.__code__))
    if any(one.opname == "IMPORT_NAME" for code in codes for one in dis.get_instructions(code)):
        return _unlike_any()
    try:
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:  # a cell that is still empty
        return _unlike_any()
    held = [cells, function.__defaults__, function.__kwdefaults__]
    names = {name for code in codes for name in code.co_names} & set(function.__globals__)
    read = [(name, function.__globals__[name]) for name in sorted(names)]
    inner = (*within, function)
    leaves, form = tree_flatten(held)
    parts = [str(form), [_read(leaf, inner) for leaf in leaves], *map(_plain, codes)]
    return f"{parts} {[(name, _read(value, inner)) for name, value in read]}"


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code and that of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _plain(code: CodeType) -> list[Any]:
    """What code does, whatever file and line it is from."""
    consts = [one for one in code.co_consts if not isinstance(one, CodeType)]
    return [code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars, consts]


def _read(value: Any, within: tuple[Any, ...]) -> str:
    """A value that an opened function reads."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, _OPERATIONS):
        return _unlike_any() if _is_opened(value) else str(value)
    home = _home(value)
    if _known(home) and isinstance(value, _NAMED):
        return f"{home}.{getattr(value, '__qualname__', '')}"
    return _opened(value, within)


def _unlike_any() -> str:
    return f"{_RUN} {next(_unnamed)}"


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
