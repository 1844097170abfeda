"""Where kernels run: `cpu`, `sim` or `neuron`. Decided once, explained, overridable for a block.

    import dslearn.backend
    dslearn.backend.current()              # Backend(name='cpu', reason='...')
    with dslearn.backend.use("cpu"):       # this block only
        ...

`DSLEARN_BACKEND` names one; without it `neuron` is taken if a device answers, else `cpu`. This
version has no kernels yet, so `cpu` (the torch reference path) is the only one that can serve, and
asking for another is an error: there is no silent fallback.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

from dslearn.errors import BackendError, UsageError
from dslearn.vendor import neuron_device

Name = Literal["cpu", "sim", "neuron"]
NAMES: tuple[str, ...] = get_args(Name)
SERVING: tuple[str, ...] = ("cpu",)  # the backends that this version has code for
VARIABLE = "DSLEARN_BACKEND"

_log = logging.getLogger(__name__)
_override: ContextVar[Backend | None] = ContextVar("dslearn_backend", default=None)


@dataclass(frozen=True)
class Backend:
    """A chosen backend and the sentence that says why it was chosen."""

    name: str
    reason: str


def select(name: str, asked_by: str) -> Backend:
    """The backend called `name`; `asked_by` says who asked, for the reason and the message.

    Raises:
        UsageError: not a backend's name.
        BackendError: a backend that this version cannot serve.
    """
    wanted = name.strip().lower()
    if wanted not in NAMES:
        raise UsageError(f"{asked_by} names backend {name!r}: must be one of {', '.join(NAMES)}")
    if wanted not in SERVING:
        raise BackendError(
            f"{asked_by} asks for backend {wanted!r}: this version has no kernels yet, cpu is the "
            f"only backend; unset {VARIABLE} or set it to cpu"
        )
    return Backend(wanted, f"{asked_by} asks for it")


def current() -> Backend:
    """The backend in force here: that of the innermost `use` block, else the process's.

    The process's choice is made at the first call and kept; a change of `DSLEARN_BACKEND` after
    that has no effect. A `use` block is seen by its own thread (or asyncio task) only.

    Raises:
        UsageError, BackendError: see `select`.
    """
    return _override.get() or _decided()


@contextmanager
def use(name: str) -> Iterator[Backend]:
    """Use backend `name` inside the `with` block, whatever the environment says.

    Raises:
        UsageError, BackendError: see `select`.
    """
    chosen = select(name, f"use({name!r})")
    token = _override.set(chosen)
    try:
        yield chosen
    finally:
        _override.reset(token)


@cache
def _decided() -> Backend:
    asked = os.environ.get(VARIABLE, "").strip()
    chosen = select(asked, f"{VARIABLE}={asked}") if asked else _default()
    _log.info("backend %s: %s", chosen.name, chosen.reason)
    return chosen


def _default() -> Backend:
    answers, why = neuron_device()
    if answers and "neuron" in SERVING:
        return Backend("neuron", why)
    return Backend("cpu", f"{why}; this version has no kernels for it yet" if answers else why)
