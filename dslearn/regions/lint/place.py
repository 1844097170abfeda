"""Which line of the user's source an operation comes from.

Not torch's line, nor this package's tracer, nor the standard library's: the innermost one outside
of them. A layer of `torch.nn` therefore counts for the line that calls it.
"""

from __future__ import annotations

import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from traceback import FrameSummary
from types import FrameType
from typing import NamedTuple

import torch

_TORCH = str(Path(torch.__file__).parent)
_POLYFILLS = str(Path(_TORCH, "_dynamo", "polyfills"))  # the standard library, rewritten
_STDLIB = sysconfig.get_paths()["stdlib"]
_HERE = str(Path(__file__).parent)
_FRAME = re.compile(r'File "(.+)", line (\d+), in ')


class Place(NamedTuple):
    """A line; `line` 0 means that nobody knows."""

    path: str
    line: int


UNKNOWN = Place("<unknown>", 0)


def of_text(stack_trace: str | None) -> Place:
    """The place in a stack trace as FX nodes carry it, innermost frame last."""
    found = _FRAME.findall(stack_trace or "")
    return innermost(Place(path, int(line)) for path, line in reversed(found))


def of_caller() -> Place:
    """The place that is being executed."""
    return innermost(of_caller_frames())


def of_caller_frames() -> Iterator[Place]:
    """What is being executed, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield Place(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back


def of_summary(stack: Iterable[FrameSummary] | None) -> Iterator[Place]:
    """The frames of a stack summary, innermost first."""
    for frame in reversed(list(stack or ())):
        yield Place(frame.filename, frame.lineno or 0)


def of_reader(frames: Iterable[Place]) -> Place:
    """The first of `frames` outside the standard library; unknown if it is torch's own code."""
    for place in frames:
        if not _between(place.path) and not place.path.startswith(_POLYFILLS):
            return UNKNOWN if place.path.startswith(_TORCH) else place
    return UNKNOWN


def innermost(frames: Iterable[Place]) -> Place:
    """The first of `frames`, innermost first, that is the user's."""
    return next((place for place in frames if not _foreign(place.path)), UNKNOWN)


def _foreign(path: str) -> bool:
    return path.startswith(_TORCH) or _between(path)


def _between(path: str) -> bool:
    """Whether a file stands between the user and torch: the standard library, this package."""
    if path.startswith((_HERE, "<frozen ", "<eval_with_key>")):
        return True
    return path.startswith(_STDLIB) and "-packages" not in path
