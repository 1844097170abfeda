"""What happens when a marked method is called: it runs, or its region does.

Modes: `eager` runs it; `regions` compiles each stage; `whole` compiles what is marked as a whole
step, and the stages inside become part of its graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch

from dslearn import backend
from dslearn.errors import UsageError
from dslearn.model import stage as stages
from dslearn.model.stage import Mark
from dslearn.regions import settings, timing
from dslearn.regions.compiled import Region
from dslearn.regions.reporting import Report, line_of

S = TypeVar("S")
P = ParamSpec("P")
T = TypeVar("T")

_regions: dict[tuple[Mark, type, str], Region] = {}
_warm = False


def install() -> None:
    """Do with marked methods what the environment asks for, from now on.

    Raises:
        UsageError: a variable with a value that is not allowed.
    """
    wanted = settings.from_environment()
    if wanted.timing:
        timing.print_at_exit()
    if wanted.timing or wanted.mode != "eager":
        _install()


@contextmanager
def use(mode: str) -> Iterator[None]:
    """Graph mode `mode` in the `with` block, whatever the environment says.

    Raises:
        UsageError: not a mode.
    """
    wanted = settings.check_mode(mode, "mode")
    install()
    _install()
    with settings.forced(wanted):
        yield


@contextmanager
def record() -> Iterator[timing.Ledger]:
    """Time the stages in the `with` block, in any mode; see `dslearn.regions.timing`."""
    _install()
    with timing.record() as ledger:
        yield ledger


def region(
    stage: str, *, whole: bool = False
) -> Callable[[Callable[Concatenate[S, P], T]], Callable[Concatenate[S, P], T]]:
    """Mark a method as `dslearn.model.stage.stage` does, and install what compiles it."""
    install()
    return stages.stage(stage, whole=whole)


def warm(done: bool = True) -> None:
    """No more graphs: a call that fits none raises instead of compiling. False: again as before."""
    global _warm
    _warm = done
    for one in _regions.values():
        one.warm = done


def report() -> Report:
    """The regions that were called, in the order of their first calls; `print` shows a table."""
    return Report(map(line_of, _regions.values()))


def forget() -> None:
    """Drop all graphs of this process, and `warm`; graphs on disk stay."""
    _regions.clear()
    warm(False)


def _install() -> None:
    stages.install(_run, lambda: settings.mode() != "eager", timing.step, timing.part)


def _run(mark: Mark, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    ledger = timing.active()
    if ledger is None:
        return _call(mark, owner, args, kwargs)
    with ledger.charge(f"{mark.stage} ({type(owner).__name__})"):
        return _call(mark, owner, args, kwargs)


def _call(mark: Mark, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    mode = settings.mode()
    if mode == "eager" or mark.whole != (mode == "whole"):
        return mark.method(owner, *args, **kwargs)
    if torch.is_grad_enabled():
        raise UsageError(
            f"{type(owner).__name__}.{mark.method.__name__} in graph mode {mode} with gradients: "
            "regions are for inference; call it under torch.inference_mode(), or use mode eager"
        )
    # A graph holds what was decided for the backend that it was traced on.
    key = mark, type(owner), backend.current().name
    found = _regions.get(key)
    if found is None:
        found = _regions[key] = Region(mark, type(owner))
        found.warm = _warm
    return found(owner, *args, **kwargs)
