"""Trying a compiler on a graph: in this process, or in one that may die."""

from __future__ import annotations

import copy
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dslearn.errors import UsageError
from dslearn.regions.workshop import rerun
from dslearn.regions.workshop.case import Case
from dslearn.regions.workshop.reproducer import source

Backend = Callable[..., Any]  # as torch.compile takes it: (graph module, inputs) -> callable


@dataclass(frozen=True)
class Outcome:
    """What a compile came to.

    Attributes:
        kind: "passed"; "crash", an exception; "killed", the process died; "timeout"; "wrong",
            another result than eager; "invalid", eager itself fails.
        text: the error, the signal, the first difference.
    """

    kind: str
    text: str = ""

    @property
    def signature(self) -> str:
        """What failures with the same cause share: the compiler's own code, or the exception."""
        code = re.search(r"\bNCC_\w+", self.text) or re.match(r"[\w.]+", self.text)
        return f"{self.kind} {code[0] if code and self.kind == 'crash' else ''}".strip()


class Attempt(Protocol):
    """One compile of a graph, one run, one comparison with eager."""

    def __call__(self, case: Case, /) -> Outcome:
        """Try it."""


def here(backend: Backend | str) -> Attempt:
    """Attempts in this process: fast, and gone with it when the compiler dies.

    Raises:
        UsageError: no backend of that name.
    """
    function = named(backend) if isinstance(backend, str) else backend

    def attempt(case: Case) -> Outcome:
        module = copy.deepcopy(case.module)  # a backend may change what it is given
        return Outcome(*rerun.attempt(function, module, case.specs, case.seed, case.tolerance))

    return attempt


def in_child(backend: str, timeout_s: float = 3600.0) -> Attempt:
    """Attempts in a process of their own: a segfault, an abort, or no end becomes an `Outcome`.

    Each one writes the reproducer and runs it, which takes a few seconds for importing torch.

    Args:
        backend: a name of torch.compile, or MODULE:FUNCTION.
        timeout_s: after so many seconds the process and what it started are killed.

    Raises:
        UsageError: no backend of that name.
    """
    named(backend)

    def attempt(case: Case) -> Outcome:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "reproducer.py")
            file.write_text(source(case), encoding="utf-8")
            command = [sys.executable, str(file), "--backend", backend]
            # Its own session, so that the compiler's own processes are reached too.
            child = subprocess.Popen(
                command,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(p or os.curdir for p in sys.path)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            try:
                said, complaint = child.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.communicate()
                return Outcome("timeout", f"no end after {timeout_s:g} s")
        return _read(child.returncode, said, complaint)

    return attempt


def _read(code: int, said: str, complaint: str) -> Outcome:
    """What a reproducer's exit and words say."""
    found = re.search(r"^compile 1: (\w+) ?(.*)$", said, re.M)
    if found:
        return Outcome(found[1], found[2])
    last = next(iter(complaint.strip().splitlines()[-1:]), "")
    if code < 0:
        return Outcome("killed", f"{signal.Signals(-code).name} {last}".strip())
    return Outcome("killed", f"exit code {code}: {last}")


def named(backend: str) -> Backend:
    """A backend by name, as torch.compile knows it, or MODULE:FUNCTION.

    Raises:
        UsageError: there is none.
    """
    try:
        return rerun.named(backend)
    except Exception as error:
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UsageError(
            f"--backend {backend}: must be a backend of torch.compile or MODULE:FUNCTION: {said}"
        ) from error
