"""Where kernels run: `cpu`, `sim` or `neuron`. Decided once, explained, overridable for a block.

    import dslearn.backend
    dslearn.backend.current()              # Backend(name='cpu', reason='...')
    with dslearn.backend.use("cpu"):       # this block only
        ...

`DSLEARN_BACKEND` names one; without it, `cpu` is taken. The backend says what serves the operations
of `dslearn.ops`: their twins in torch (`cpu`), the kernels on a simulator (`sim`) or on a Neuron
device (`neuron`, only where one answers). There is no silent fallback. The model calls them on
`sim`, for what has a kernel in it; `dslearn generate --trace` lists that, and what runs in torch.
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
SERVING: tuple[str, ...] = ("cpu", "sim")  # the backends that every machine has
VARIABLE = "DSLEARN_BACKEND"

_log = logging.getLogger(__name__)
_override: ContextVar[Backend | None] = ContextVar("dslearn_backend", default=None)

# What `torch.compile` reads while it captures a graph, and guards: it cannot follow `current()`.
# Of threads that use several backends at once, it knows the last that entered or left a block.
captured_for = os.environ.get(VARIABLE, "").strip().lower() or "cpu"


@dataclass(frozen=True)
class Backend:
    """A chosen backend and the sentence that says why it was chosen."""

    name: str
    reason: str


def select(name: str, asked_by: str) -> Backend:
    """The backend called `name`; `asked_by` says who asked, for the reason and the message.

    Raises:
        UsageError: not a backend's name.
        BackendError: `neuron`, and no device answers.
    """
    wanted = name.strip().lower()
    if wanted not in NAMES:
        raise UsageError(f"{asked_by} names backend {name!r}: must be one of {', '.join(NAMES)}")
    if wanted in SERVING:
        return Backend(wanted, f"{asked_by} asks for it")
    answers, why = neuron_device()
    if not answers:
        raise BackendError(
            f"{asked_by} asks for backend {wanted!r}: {why}; set {VARIABLE} to "
            f"{' or '.join(SERVING)}, `dslearn doctor` says more"
        )
    return Backend(wanted, f"{asked_by} asks for it; {why}")


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
    global captured_for
    chosen = select(name, f"use({name!r})")
    token, before = _override.set(chosen), captured_for
    captured_for = chosen.name
    try:
        yield chosen
    finally:
        _override.reset(token)
        captured_for = before


@cache
def _decided() -> Backend:
    global captured_for
    asked = os.environ.get(VARIABLE, "").strip()
    chosen = select(asked, f"{VARIABLE}={asked}") if asked else _default()
    captured_for = chosen.name
    _log.info("backend %s: %s", chosen.name, chosen.reason)
    return chosen


def _default() -> Backend:
    answers, why = neuron_device()
    later = f"the model does not run there yet; {VARIABLE}=neuron is for dslearn.ops alone"
    return Backend("cpu", f"{why}, but {later}" if answers else why)
