"""A kernel as two callables: on the simulator, and on the device where there is one.

Every kernel goes through the vendor's `wrap_nki` once, when its operation is declared: each call
of `wrap_nki` registers the kernel anew, under an index that becomes part of compiled graphs, so
ranks that wrap in another order, or twice, compile other graphs.
Source: torch_neuronx 0.1.0, module `nki_hop`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from dslearn import vendor
from dslearn.errors import UsageError

_wrapped: dict[int, tuple[Any, Any]] = {}  # id of a kernel -> itself, and its device caller


@dataclass(frozen=True)
class Launcher:
    """A kernel for `cores` cores; `device` is None where torch_neuronx is not the vendor's."""

    name: str
    cores: int
    simulated: Callable[..., Any]
    device: Callable[..., Any] | None


def wrap(kernel: Any, grid: int | tuple[int, ...]) -> Launcher:
    """A kernel ready to launch, on the vendor's `nki` if `dslearn.kernels.NKI` is real.

    Args:
        kernel: a function marked `@nki.jit`.
        grid: cores, 1 or 2, as a number or a tuple of one.
    Raises:
        UsageError: another grid, or something that is no kernel.
    """
    cores = grid[0] if isinstance(grid, tuple) and len(grid) == 1 else grid
    if cores not in (1, 2) or isinstance(cores, bool) or not isinstance(cores, int):
        raise UsageError(f"grid={grid!r}: a kernel runs on 1 or 2 cores; write 2 or (2,)")
    if not (hasattr(kernel, "func") and hasattr(kernel, "sign")):
        raise UsageError(f"{kernel!r} is no kernel: mark it with @nki.jit")
    name = str(getattr(kernel.func, "__name__", kernel))
    simulate = import_module("nki").simulate
    caller = _device_caller(kernel)
    return Launcher(
        name,
        cores,
        lambda *arguments: simulate(kernel[cores])(*given(arguments)),
        # A bare number as the grid fails in some of the vendor's versions.
        None if caller is None else lambda *arguments: caller[(cores,)](*given(arguments)),
    )


def given(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments without the Nones at their end, which a kernel has as defaults."""
    while arguments and arguments[-1] is None:
        arguments = arguments[:-1]
    return arguments


def _device_caller(kernel: Any) -> Any:
    if not vendor.probe("torch_neuronx").real:
        return None
    if id(kernel) not in _wrapped:
        _wrapped[id(kernel)] = kernel, import_module("torch_neuronx.nki_hop").wrap_nki(kernel)
    return _wrapped[id(kernel)][1]
