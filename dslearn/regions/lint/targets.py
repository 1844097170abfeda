"""`MODULE:FUNCTION` and descriptions of tensors, as they stand on a command line."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dslearn.errors import UsageError


def find(target: str) -> Any:
    """What `MODULE:NAME` names; modules are also found in the working directory.

    Raises:
        UsageError: another form, no such module or name.
    """
    home, colon, name = target.partition(":")
    if not colon:
        raise UsageError(f"{target}: must be MODULE:FUNCTION, as in my_model:step")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(home)
    except Exception as error:  # whatever the user's module raises
        if _is_file(home, error):
            path = Path(home.removesuffix(".py"))
            dotted = path.name if path.is_absolute() else ".".join(path.parts)
            raise UsageError(
                f"{target}: a module is named without .py, as in {dotted}:{name}"
            ) from error
        raise UsageError(f"{target}: {type(error).__name__}: {error}") from error
    if not hasattr(module, name):
        raise UsageError(f"{target}: {home} has no attribute {name!r}")
    return getattr(module, name)


def _is_file(home: str, error: Exception) -> bool:
    """Whether `home`, which did not import, is a file's name: a package may hold a module py."""
    if not home.endswith(".py"):
        return False
    # Another name is what the file itself imports.
    absent = isinstance(error, ImportError) and error.name in (home, home.removesuffix(".py"))
    return absent or "/" in home


def tensor(description: str) -> Tensor:
    """`float32[2,8]` as a tensor of ones, `int64[4]` as zeros.

    Raises:
        UsageError: another form, or no dtype of torch.
    """
    match = re.fullmatch(r"(\w+)\[([\d,\s]*)\]", description.strip())
    dtype = getattr(torch, match[1], None) if match else None
    if match is None or not isinstance(dtype, torch.dtype):
        raise UsageError(f"--input {description}: must be DTYPE[SIZES], as in float32[2,8]")
    shape = [int(size) for size in match[2].split(",") if size.strip()]
    return (torch.ones(shape) if dtype.is_floating_point else torch.zeros(shape)).to(dtype)


def call(target: str, inputs: list[str]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The function to lint and its inputs.

    With `inputs` the target is that function; without, calling it gives `(function, *inputs)`.

    Raises:
        UsageError: the target is no function, or gives something else.
    """
    function = find(target)
    if not callable(function):
        raise UsageError(f"{target} is {type(function).__name__}: must be a function")
    if inputs:
        return function, tuple(tensor(one) for one in inputs)
    try:
        made = function()
    except TypeError as error:
        raise UsageError(
            f"{target}: give the inputs with --input, or name a function without arguments that "
            f"returns (function, inputs...): {error}"
        ) from error
    if not isinstance(made, tuple) or not made or not callable(made[0]):
        raise UsageError(f"{target}() gave {type(made).__name__}: must be (function, inputs...)")
    return made[0], made[1:]
