"""`nki.collectives`: the published names, none of which is simulated.

Source: docs/reference/nki.md, section "Collectives".
"""

from __future__ import annotations

import inspect
from ast import literal_eval
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dslearn.sim.rules import ArgumentError, NotSupportedError
from dslearn.sim.signatures import Signature, signatures

PREFIX = "nki.collectives."


@dataclass
class ReplicaGroup:
    """Which ranks take part: a list of groups of rank ids."""

    replica_groups: Any = None


def _absent(signature: Signature) -> Callable[..., Any]:
    """A function with the published parameters that says it is not simulated."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    sign = inspect.Signature(
        [
            inspect.Parameter(p.name, kind)
            if p.default is None
            else inspect.Parameter(p.name, kind, default=literal_eval(p.default))
            for p in signature.parameters
        ]
    )

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            sign.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentError(f"{signature.name}: {error}", rule="arguments") from None
        raise NotSupportedError(
            f"{signature.name}: collectives between ranks are not simulated", rule="not-simulated"
        )

    call.__name__ = call.__qualname__ = signature.name.removeprefix(PREFIX)
    call.__signature__ = sign  # type: ignore[attr-defined]
    return call


def functions() -> dict[str, Callable[..., Any]]:
    """Every collective by name."""
    published = {n.removeprefix(PREFIX): s for n, s in signatures().items() if n.startswith(PREFIX)}
    return {name: _absent(signature) for name, signature in published.items() if "." not in name}
