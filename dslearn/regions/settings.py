"""What the environment says about graphs: read once, before anything is traced.

`DSLEARN_GRAPH_MODE`: eager (as without it), regions or whole. `DSLEARN_CACHE_DIR`: where graphs are
kept, else the user's cache directory. `DSLEARN_HOST_TIMING`: 1 prints a table at the end.
`NEURON_CC_FLAGS`: options for the device's compiler, merged with those that dslearn needs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, cast, get_args

from dslearn.errors import UsageError
from dslearn.model.stage import MODE, TIMING

Mode = Literal["eager", "regions", "whole"]
MODES: tuple[str, ...] = get_args(Mode)
CACHE, COMPILER = "DSLEARN_CACHE_DIR", "NEURON_CC_FLAGS"

_override: ContextVar[Mode | None] = ContextVar("dslearn_graph_mode", default=None)


@dataclass(frozen=True)
class Settings:
    """Graph mode, folder of the graph cache, whether to time the host, compiler options."""

    mode: Mode
    cache: Path
    timing: bool
    compiler: str


@cache
def from_environment() -> Settings:
    """What the process was started with; later changes of the environment have no effect.

    Raises:
        UsageError: a value that is not one of those allowed.
    """
    return Settings(
        mode=check_mode(os.environ.get(MODE, "") or "eager", MODE),
        cache=_folder(),
        timing=_switch(TIMING),
        compiler=os.environ.get(COMPILER, ""),
    )


def check_mode(name: str, asked_by: str) -> Mode:
    """`name` as a mode.

    Raises:
        UsageError: it is none.
    """
    wanted = name.strip().lower()
    if wanted not in MODES:
        raise UsageError(f"{asked_by}={name}: must be one of {', '.join(MODES)}")
    return cast(Mode, wanted)


def mode() -> Mode:
    """The mode in force here: that of the innermost block, else the process's."""
    return _override.get() or from_environment().mode


@contextmanager
def forced(name: Mode) -> Iterator[None]:
    """`name` inside the `with` block, for its own thread (or asyncio task)."""
    token = _override.set(name)
    try:
        yield
    finally:
        _override.reset(token)


def _folder() -> Path:
    asked = os.environ.get(CACHE, "").strip()
    if asked:
        return Path(asked).expanduser()
    users = os.environ.get("XDG_CACHE_HOME", "").strip() or "~/.cache"
    return Path(users).expanduser() / "dslearn"


def _switch(variable: str) -> bool:
    value = os.environ.get(variable, "").strip()
    if value not in ("", "0", "1"):
        raise UsageError(f"{variable}={value}: must be 1 (on) or 0 (off)")
    return value == "1"
