"""Operations without a kernel: one node in a graph, a Python function when the graph runs.

They are for the cpu, where a function may look at values and a graph may not. No device compiler
opens them, so on `neuron` they are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dslearn import backend
from dslearn.errors import BackendError
from dslearn.ops.registry import LIBRARY, NAMESPACE


def host_op(schema: str, function: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """Register `dslearn::name`, served by `function` on every backend but `neuron`.

    Args:
        schema: name, arguments and results in torch's schema language, without namespace.
        function: parameters as in the schema; its results are contiguous and its own.
        fake: results of the right shape and dtype for the same arguments.
    """
    name = schema.partition("(")[0]

    def run(*args: Any) -> Any:
        if backend.current().name == "neuron":
            raise BackendError(f"{name} has no kernel: it is for the cpu, not for backend neuron")
        return function(*args)

    LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=LIBRARY)
    return getattr(getattr(torch.ops, NAMESPACE), name).default
