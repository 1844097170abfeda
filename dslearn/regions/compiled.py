"""A compiled method: one entry per (class, method), a graph per shape of its tensors.

Weights are inputs of the graph, so all layers of a class share its graphs. When a call fits none,
`Region` asks which guards failed, then compiles, or refuses to: after `warm()`, and when a region
has made too many. Nothing is ever run without its graph instead.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from threading import RLock
from types import FunctionType
from typing import Any

import torch
from torch import fx
from torch._dynamo import exc

from dslearn.errors import DslearnError, GraphError, UsageError
from dslearn.model.stage import Mark
from dslearn.regions.backend import Graph, compile_graph, graphs
from dslearn.regions.compared import beside
from dslearn.regions.lint import RULES
from dslearn.regions.lint.capture import why_broken
from dslearn.regions.lint.environment import watch
from dslearn.regions.lint.trace import Found

LIMIT = 64  # graphs of one region: batch sizes, and prompts of a few lengths
SHOWN = 3  # guards of an explanation
_FAILED = "triggered by the following guard failure(s):"
_RECOMPILES = "Detected recompile when torch.compile stance is 'fail_on_recompile'"
# "0/4: self.n == 2    # the line's text  # file.py:8 in f (HINT: ...)"; the comment may be missing.
_GUARD = re.compile(r"\d+/\d+: (.*?)(?: {2,}# .*?(?:# (\S+:\d+) in .*)?)?")
# torch stops at 8 by itself; before 2.12 a region cannot say otherwise.
_ROOM = "recompile_limit" in inspect.signature(torch.compile).parameters


@dataclass(frozen=True)
class Entry:
    """A graph of a region, and why it was made: the guards that failed for the former ones."""

    graph: Graph
    why: str


class Region:
    """Method `mark` of class `owner`, compiled when it is called.

    Attributes:
        name: `Class.method`.
        calls: how many there were.
        entries: its graphs, in the order in which they were made.
        warm: no more graphs.
    """

    def __init__(self, mark: Mark, owner: type) -> None:
        self.stage, self.name = mark.stage, f"{owner.__name__}.{mark.method.__name__}"
        self.calls = 0
        self.entries: list[Entry] = []
        self.warm = False
        self._why = ""
        self._reads: list[Found] | None = None  # environment reads while compiling, else None
        self._ready = False
        self._lock = RLock()
        room: dict[str, Any] = {"recompile_limit": LIMIT + 1} if _ROOM else {}
        self._compiled = torch.compile(
            _copy(mark.method), backend=self._backend, fullgraph=True, dynamic=False, **room
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The method's result, from a graph.

        Raises:
            GraphError: no graph fits, and none can be made; the text says why.
        """
        self.calls += 1
        if self._ready:
            try:
                with nullcontext() if self.warm else _told_first():
                    return self._compiled(*args, **kwargs)
            except (exc.TorchDynamoException, exc.FailOnRecompileLimitHit):
                pass  # nothing has run: no graph fits, and `_backend` is closed
        with self._lock:
            return self._slowly(args, kwargs)

    def _slowly(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that no graph was found for."""
        try:
            with torch.compiler.set_stance("fail_on_recompile"):
                return self._compiled(*args, **kwargs)
        except RuntimeError as error:
            if not str(error).startswith(_RECOMPILES):
                raise
            self._why = _reasons(str(error))
        if self.warm:
            raise GraphError(
                f"region {self.name} has no graph for this call, and warm() ended compilation: "
                f"{self._why}; call it that way before warm(), or pad to a shape that it has"
            )
        if len(self.entries) >= (LIMIT if _ROOM else torch._dynamo.config.recompile_limit):
            raise GraphError(
                f"region {self.name} has {len(self.entries)} graphs, as many as a region may: "
                f"{self._why}; a number that differs between layers or calls must be a tensor"
            )
        return self._compile(args, kwargs)

    def _compile(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._reads = []
        try:
            with watch(self._reads):
                result = self._compiled(*args, **kwargs)
        except exc.BackendCompilerFailed as error:
            cause = error.inner_exception
            if not isinstance(cause, DslearnError):
                raise
            raise GraphError(f"region {self.name}: {cause}") from None
        except (exc.TorchDynamoException, exc.FailOnRecompileLimitHit) as error:
            rule, (path, line), said = why_broken(error)
            # A mistake that eager code makes too needs no rewrite.
            do = "" if isinstance(error, exc.TorchRuntimeError) else f" ({RULES[rule].fix})"
            raise GraphError(
                f"region {self.name} is no single graph: {path}:{line}: {said}{do}"
            ) from error
        finally:
            self._reads = None
        self._ready = True
        return result

    def _backend(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        if self._reads is None:
            raise GraphError(f"region {self.name} has no graph for this call")  # for `__call__`
        if self._reads:
            _, (path, line), said = self._reads[0]
            raise GraphError(
                f"{path}:{line} {said} while it is traced, which fixes the value in the graph: "
                "read it before and pass it on"
            )
        graph = compile_graph(module, inputs, graphs())
        self.entries.append(Entry(graph, self._why))
        return beside(self.name, graph.run, module)


def _copy(method: Callable[..., Any]) -> FunctionType:
    """The method with code of its own: torch keeps graphs by code, and subclasses share theirs."""
    if not isinstance(method, FunctionType):
        raise UsageError(f"{method!r} is marked as a stage: mark a method, before other decorators")
    made = FunctionType(
        method.__code__.replace(),
        method.__globals__,
        method.__name__,
        method.__defaults__,
        method.__closure__,
    )
    made.__kwdefaults__ = method.__kwdefaults__
    return made


def _reasons(said: str) -> str:
    """The guards that failed, in torch's words: of the last graphs, and how many more there are."""
    _, _, failed = said.partition(_FAILED)
    lines = [line.strip().removeprefix("- ") for line in failed.splitlines() if line.strip()]
    # Below a guard on an attribute there is a stack, which has no number of a graph.
    found = [_GUARD.fullmatch(line) for line in lines]
    texts = [f"{one[1]} ({one[2]})" if one[2] else one[1] for one in found if one]
    shown = list(dict.fromkeys(texts or lines)) or ["first call"]
    more = len(shown) - SHOWN
    return "; ".join([*shown[:SHOWN], *([f"{more} more"] if more > 0 else [])])


def _told_first() -> AbstractContextManager[Any]:
    """A call that fits no graph is told so before it is traced; for 25 us, so only until `warm`."""
    patch: AbstractContextManager[Any] = torch._dynamo.config.patch(error_on_recompile=True)
    return patch
