"""How an exercise is checked: case by case, up to the first that is wrong, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

Case = tuple[tuple[Any, ...], Any, str]  # arguments, what is due, why


def run(number: str, name: str, function: Callable[..., Any], cases: Iterable[Case]) -> None:
    """Compare `function(*arguments)` with what is due, case by case."""
    right = 0
    for arguments, due, why in cases:
        got = function(*arguments)
        call = f"{name}({', '.join(map(_short, arguments))})"
        assert got is not None, (
            f"exercise {number}: {call} gives None, must be {due!r}: fill the hole, `...`"
        )
        assert got == due, f"exercise {number}: {call} gives {got!r}, must be {due!r}: {why}"
        right += 1
    print(f"exercise {number}: all {right} cases are right")


def _short(argument: Any) -> str:
    return f"<{len(argument)} bytes>" if isinstance(argument, bytes) else repr(argument)
