"""A function that torch.compile has never seen, for one compilation."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from types import FunctionType
from typing import Any


def fresh(function: Callable[..., Any]) -> FunctionType:
    """`function` behind code and globals of its own.

    torch keeps what it compiles with the code, helpers in the globals, and counts how often it
    compiled the same code: all of that goes when the result goes. The closure has one cell, named
    `function`.
    """

    def call(*args: Any) -> Any:
        return function(*args)

    code = call.__code__.replace(co_name=f"once_{id(call):x}")
    names = {"__name__": __name__, "__builtins__": builtins}
    return FunctionType(code, names, closure=call.__closure__)
