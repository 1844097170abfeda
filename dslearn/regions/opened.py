"""What a function or an operation does, as text: part of the name of a graph that calls it.

Dynamo keeps calls of some functions as they are (`torch.compiler.allow_in_graph`, and operations
made of other operations); their insides are traced later, so that a name alone does not tell what
the graph will hold.
"""

from __future__ import annotations

import dis
import os
from collections.abc import Iterator
from itertools import count
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

_PACKAGE = "dslearn"
_KNOWN = ("torch", "_operator", "operator", "builtins", "math", "numpy", _PACKAGE)
_PLAIN = (int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_OPERATIONS = (
    torch._ops.OpOverload,
    torch._ops.OpOverloadPacket,
    torch._ops.HigherOrderOperator,
)
_NAMED = (ModuleType, type, FunctionType, BuiltinFunctionType)  # whose name says what they do
_RUN = os.urandom(8).hex()  # of this process: what cannot be named is the same in no other
_unnamed = count()


def told(target: Any) -> str:
    """The target of a node: its name; a user's own function with all that it reads."""
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
        and one.namespace not in ("aten", "prims", "prim", _PACKAGE)
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
