"""Which environment variables a function reads while it is traced, or run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any
from unittest import mock

import torch

from dslearn.regions.lint.place import UNKNOWN, of_caller_frames, of_reader, of_summary
from dslearn.regions.lint.trace import Found


@contextmanager
def watch(found: list[Found]) -> Iterator[None]:
    """Add what the user's own code reads to `found`."""
    real, mine = type(os.environ).__getitem__, get_ident()

    # torch calls this while it traces, with the key that it knows then.
    @torch.compiler.assume_constant_result
    def note(key: Any) -> int:
        if get_ident() != mine:
            return 0  # another thread, such as one that draws a progress bar
        traced = torch._guards.TracingContext.extract_stack()
        running = list(of_caller_frames())
        if any(place.path.startswith("<frozen importlib") for place in running):
            return 0  # a module that is imported meanwhile: it would read the same at any time
        # Called by `read` it was run, maybe by torch, whatever the line that torch traces then.
        run = sys._getframe(1).f_code is read.__code__
        where = of_reader(running if run or not traced else of_summary(traced))
        if where != UNKNOWN:
            found.append(("environment-read", where, f"reads {key}"))
        return 0

    def read(environment: Any, key: Any) -> Any:
        note(key)
        return real(environment, key)

    with mock.patch.object(type(os.environ), "__getitem__", read):
        yield
