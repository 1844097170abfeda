"""Marks on the methods of the model that may be compiled.

    class Block(nn.Module):
        @stage("attention")
        def attention_half(self, h: Tensor, pool: Tensor) -> Tensor: ...

A marked method is an ordinary method until somebody installs a runner; then the runner is called
instead, with the mark, the object and the arguments. `dslearn.regions` has one, which compiles the
method; the model, which lies below it, knows only the mark. While `torch.compile` traces, marks
inside of what is traced do nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch

MODE, TIMING = "DSLEARN_GRAPH_MODE", "DSLEARN_HOST_TIMING"  # what asks for a runner

S = TypeVar("S")
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Mark:
    """What a runner is told of a marked method.

    Attributes:
        stage: what the method does in a step, for reports: "attention".
        method: the method as it was written.
        whole: it is a step as a whole, with other stages inside.
    """

    stage: str
    method: Callable[..., Any]
    whole: bool


Runner = Callable[[Mark, Any, tuple[Any, ...], dict[str, Any]], Any]
_runner: Runner | None = None
_compiles: Callable[[], bool] = bool
_step: Callable[[], AbstractContextManager[None]] = nullcontext


def _unmeasured(_: str) -> AbstractContextManager[None]:
    return nullcontext()


_part: Callable[[str], AbstractContextManager[None]] = _unmeasured


def install(
    runner: Runner | None,
    compiles: Callable[[], bool] = bool,
    step: Callable[[], AbstractContextManager[None]] = nullcontext,
    part: Callable[[str], AbstractContextManager[None]] = _unmeasured,
) -> Runner | None:
    """Call `runner(mark, object, args, kwargs)` for marked methods, None: nobody; -> the former.

    Args:
        runner: called instead of a marked method.
        compiles: whether it would compile one now.
        step: a context for what a step does, stages and the rest.
        part: a context for what the host does of a step outside of marked methods, by its name.
    """
    global _runner, _compiles, _step, _part
    former, _runner, _compiles, _step, _part = _runner, runner, compiles, step, part
    return former


def compiles() -> bool:
    """Whether marked methods become graphs now, so that no shape may follow from a value."""
    return _compiles()


def step() -> AbstractContextManager[None]:
    """The `with` block is one step of a model, for whoever measures it."""
    return _step()


def part(name: str) -> AbstractContextManager[None]:
    """The `with` block is work of the host outside of marked methods, for whoever measures it."""
    return _part(name)


def stage(
    name: str, *, whole: bool = False
) -> Callable[[Callable[Concatenate[S, P], T]], Callable[Concatenate[S, P], T]]:
    """Mark a method as the stage `name` of a step; with `whole`, as what calls the other stages.

    Such a method takes and returns tensors (and numbers and None), nothing else, and reads no
    number of its object that differs between layers: layers then share one graph.
    """

    def mark(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
        marked = Mark(name, method, whole)

        @functools.wraps(method)
        def call(self: S, *args: P.args, **kwargs: P.kwargs) -> T:
            # The first question comes first: asking about the runner while tracing is a guard.
            if torch.compiler.is_compiling() or _runner is None:
                return method(self, *args, **kwargs)
            done: T = _runner(marked, self, args, kwargs)
            return done

        return call

    return mark
