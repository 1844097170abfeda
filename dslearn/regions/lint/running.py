"""A function that is no single graph, recorded while it runs.

Every ATen operation is seen with the line that asked for it, whatever Python does in between: the
values are real, and what the function overwrites is overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias
from unittest import mock

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from dslearn.errors import UsageError
from dslearn.regions.lint.environment import watch
from dslearn.regions.lint.origin import Origin
from dslearn.regions.lint.place import of_caller
from dslearn.regions.lint.record import Recorder
from dslearn.regions.lint.trace import Trace

Function: TypeAlias = Callable[..., Any]


def run(trace: Trace, function: Function, inputs: tuple[Any, ...], host: frozenset[int]) -> None:
    """Fill `trace` by running the function; storages `host` are in host memory.

    Raises:
        UsageError: the function fails on these inputs.
    """
    known = {id(tensor): (name, weight) for name, weight, tensor in _named(function, inputs)}

    def origin(tensor: Tensor) -> Origin:
        weight = isinstance(tensor, nn.Parameter)
        name, weight = known.get(id(tensor), (Origin().name, weight))
        return Origin(name, weight, tensor.untyped_storage()._cdata in host)

    recorder = Recorder(trace.graph, of_caller, origin)
    try:
        with (
            mock.patch.object(torch.compiler, "is_compiling", lambda: True),
            watch(trace.hits),
            _Reads(trace),
            recorder,
        ):
            function(*inputs)
    except Exception as error:
        if any(isinstance(leaf, Tensor) and leaf.is_meta for leaf in tree_leaves(inputs)):
            return  # tensors without values cannot go further than this
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UsageError(f"the function fails on these inputs: {said}") from error


class _Reads(TorchFunctionMode):
    """Notes reads of values that leave torch without an ATen operation."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self.trace = trace

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run `func`, whatever it is."""
        if func in (Tensor.tolist, Tensor.numpy, Tensor.__array__):
            said = f"values are read by {func.__name__}"
            self.trace.hits.append(("data-dependent", of_caller(), said))
        return func(*args, **(kwargs or {}))


def _named(function: Function, inputs: tuple[Any, ...]) -> Iterator[tuple[str, bool, Tensor]]:
    """Name of a tensor, whether it is a weight, the tensor."""
    owner = function if isinstance(function, nn.Module) else getattr(function, "__self__", None)
    if isinstance(owner, nn.Module):
        for named in (owner.named_buffers(), owner.named_parameters()):
            yield from ((name, True, tensor) for name, tensor in named)
    for i, given in enumerate(inputs):
        for leaf in tree_leaves(given):
            if isinstance(leaf, Tensor):
                yield f"args[{i}]", isinstance(leaf, nn.Parameter), leaf
