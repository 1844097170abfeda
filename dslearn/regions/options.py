"""Options of the device's compiler, merged: an option that is given twice replaces itself.

neuronx-cc reads one `--internal-hlo2tensorizer-options`; of two, the second wins and the first is
lost without a word. Options that hold options are therefore joined into one string.
"""

from __future__ import annotations

import shlex

JOINED = ("--internal-hlo2tensorizer-options", "--internal-backend-options")
OURS = "--auto-cast=none"  # roundings stay where the model has them


def merge(*parts: str) -> str:
    """Several strings of options as one; the last value of an option counts.

    The values of options that hold options are merged themselves.
    """
    found: dict[str, str | None] = {}
    for name, value in (pair for part in parts for pair in _pairs(shlex.split(part))):
        former = found.pop(name, None)
        both = [text for text in (former, value) if text]
        found[name] = merge(*both) if name in JOINED else value
    return " ".join(_shown(name, value) for name, value in found.items())


def _pairs(words: list[str]) -> list[tuple[str, str | None]]:
    """`--name=value`, `--name value` and `-O1` as (name, value)."""
    pairs: list[tuple[str, str | None]] = []
    waiting = False  # the last option has no value yet and may get one
    for word in words:
        takes_options = waiting and pairs[-1][0] in JOINED
        if waiting and (takes_options or not word.startswith("-")):
            pairs[-1] = (pairs[-1][0], word)
            waiting = False
            continue
        name, equals, value = word.partition("=")
        level = word[:2] == "-O" and word[2:].isdigit()
        pairs.append(("-O", word[2:]) if level else (name, value if equals else None))
        waiting = not (equals or level)
    return pairs


def _shown(name: str, value: str | None) -> str:
    if name == "-O":
        return f"-O{value}"
    return name if value is None else shlex.quote(f"{name}={value}")
