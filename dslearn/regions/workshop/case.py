"""A graph and the inputs it is tried on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd

from dslearn.errors import UsageError
from dslearn.regions.lint.entry import fresh
from dslearn.regions.workshop.rerun import Spec, Tolerance, draw


@dataclass(frozen=True)
class Case:
    """A graph and how its inputs are drawn.

    Attributes:
        module: placeholders take tensors; every value of `specs` belongs to one.
        specs: one per placeholder, in order.
        seed: of the inputs.
        imports: modules that define the operations which torch does not have.
        tolerance: relative and absolute difference from eager that floats may have; None takes
            that of the dtype.
    """

    module: fx.GraphModule
    specs: tuple[Spec, ...]
    seed: int = 0
    imports: tuple[str, ...] = ()
    tolerance: Tolerance = None

    @property
    def operations(self) -> list[fx.Node]:
        """The nodes that compute."""
        return [n for n in self.module.graph.nodes if n.op.startswith("call_")]

    def inputs(self) -> list[Tensor]:
        """Fresh tensors, the same ones at every call."""
        return draw(self.specs, self.seed)


class _Captured(Exception):
    """Stops a call before its graph runs."""


def capture(function: Callable[..., Any], *inputs: Any, seed: int = 0) -> Case:
    """The ATen graph that `torch.compile(function)(*inputs)` hands to a compiler; nothing is run.

    Parameters and other tensors that the function reads are inputs of the graph.

    Raises:
        UsageError: the function is no single graph.
    """
    found: list[tuple[fx.GraphModule, tuple[Any, ...]]] = []

    def compiler(module: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        def run(*given: Tensor) -> Any:
            found.append((module, given))
            raise _Captured("the graph is known")

        return run

    backend = aot_autograd(fw_compiler=compiler, keep_inference_input_mutations=True)
    compiled = torch.compile(fresh(function), backend=backend, fullgraph=True, dynamic=False)
    try:
        with torch.no_grad():
            compiled(*inputs)
    except _Captured:
        module, given = found[0]
        known = _foreign(module) and function.__module__ != "__main__"
        imports = (function.__module__,) if known else ()
        return Case(module, describe(given), seed, imports)
    except Exception as error:
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UsageError(
            f"the function is no single graph, `dslearn lint graph` shows where: {said}"
        ) from error
    raise UsageError("the function computes nothing with tensors: there is no graph")


def _foreign(module: fx.GraphModule) -> bool:
    names = {getattr(node.target, "namespace", "aten") for node in module.graph.nodes}
    return bool(names - {"aten", "prims", "higher_order", "prim"})


def describe(tensors: Sequence[Any]) -> tuple[Spec, ...]:
    """How to draw tensors like these: layout, bounds of the values, which share memory.

    A float tensor of one value throughout is drawn between that and zero.

    Raises:
        UsageError: something else than tensors, complex numbers, two dtypes on one memory.
    """
    storages: dict[Any, list[Tensor]] = {}
    for i, one in enumerate(tensors):
        if not isinstance(one, Tensor) or one.is_complex():
            given = one.dtype if isinstance(one, Tensor) else type(one).__name__
            raise UsageError(f"input {i} is {given}: must be a real tensor")
        storages.setdefault(one.untyped_storage()._cdata, []).append(one)
    specs = []
    for one in tensors:
        shared = storages[one.untyped_storage()._cdata]
        if len({other.dtype for other in shared}) > 1:
            raise UsageError("two inputs of different dtypes share memory: pass one of them")
        bounds = [_bounds(other) for other in shared]
        low, high = min(low for low, _ in bounds), max(high for _, high in bounds)
        start = min(other.storage_offset() for other in shared)
        storage = list(storages).index(one.untyped_storage()._cdata)
        layout = (one.dtype, tuple(one.shape), one.stride())
        specs.append(Spec(*layout, low, high, storage, one.storage_offset() - start))
    return tuple(specs)


def _bounds(tensor: Tensor) -> tuple[float, float]:
    if not tensor.dtype.is_floating_point:
        flat = tensor.detach().to(torch.int64)
        return (int(flat.min()), int(flat.max())) if flat.numel() else (0, 0)
    numbers = tensor.detach().to(torch.float64)
    numbers = numbers[numbers.isfinite()]
    low, high = (float(numbers.min()), float(numbers.max())) if numbers.numel() else (0.0, 0.0)
    if low == high:
        low, high = min(low, 0.0), max(high, 0.0) or float(low == 0)
    return low, high
