"""`nki.jit`, `kernel[2](...)` and `nki.simulate`: calling a kernel on arrays.

Arguments that are arrays (NumPy or torch) become HBM tensors over the same memory, so a kernel that
writes its inputs changes the caller's arrays; results come back as the caller's kind of array.
Source: docs/reference/nki.md, section "Running a kernel".
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

import numpy as np

from dslearn.sim import arrays
from dslearn.sim.memory import MemoryRegion
from dslearn.sim.program import Launch, Program, current, enter
from dslearn.sim.record import Recording, recordings
from dslearn.sim.rules import ArgumentError, NkiValidationError, RuleError, enforced


class Kernel:
    """A function marked `@nki.jit`; `kernel[2]` is the same kernel for two cores."""

    def __init__(self, func: Callable[..., Any], grid: int | None = None) -> None:
        self.func, self.grid, self.cores = func, grid, grid or 1
        self.sign = inspect.signature(func)
        self.__name__ = getattr(func, "__name__", "kernel")
        self.__doc__ = func.__doc__
        self.__wrapped__ = func

    def __getitem__(self, grid: Any) -> Kernel:
        if isinstance(grid, bool) or not isinstance(grid, int | np.integer) or grid not in (1, 2):
            raise NkiValidationError(
                f"NKI only supports LNC 1 or 2, but got {grid!r}: write kernel[1] or kernel[2]",
                rule="lnc",
            )
        return Kernel(self.func, int(grid))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Simulate the kernel on these arguments.

        Raises:
            RuleError: called by another kernel (rule nested-jit).
            ArgumentError: arguments that do not bind.
            KernelError: whatever the kernel does that the hardware refuses.
        """
        outer = current().launch.kernel
        if outer:
            raise RuleError(
                f"{outer} calls the kernel {self.__name__}: keep the inner function free of "
                "@nki.jit and write nki.jit(f)(...) where arrays are passed",
                rule="nested-jit",
            )
        try:
            self.sign.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentError(f"{self.__name__}: {error}", rule="arguments") from None
        return run(self, args, kwargs)

    def with_schedule(self, schedule: Any) -> Kernel:
        """The same kernel; the order that `schedule` asks for changes no value."""
        return Kernel(self.func, self.grid)


def jit(fn: Callable[..., Any] | None = None, **kwargs: Any) -> Any:
    """Mark a function as a kernel, with or without parentheses.

    Raises:
        ArgumentError: `platform_target`, which the environment sets, or an unknown option.
    """
    unknown = set(kwargs) - {"mode"}
    if unknown:
        raise ArgumentError(
            f"nki.jit({', '.join(sorted(unknown))}=...): the target comes from the environment "
            "(NEURON_PLATFORM_TARGET_OVERRIDE=trn2); only mode= is accepted, and ignored",
            rule="arguments",
        )
    if fn is None:
        return jit
    return fn if isinstance(fn, Kernel) else Kernel(fn)


def simulate(kernel: Any) -> Kernel:
    """A callable that simulates `kernel` (a jitted kernel, or a plain function).

    Raises:
        ArgumentError: not a kernel.
    """
    if isinstance(kernel, Kernel):
        return kernel
    if not callable(kernel):
        raise ArgumentError(f"nki.simulate({kernel!r}): give it a kernel", rule="arguments")
    return Kernel(kernel)


def run(kernel: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Execute `kernel` on one or two cores and convert what it returns."""
    region = MemoryRegion.private_hbm if kernel.cores == 1 else MemoryRegion.shared_hbm
    inputs = arrays.Inputs(region, tuple(kernel.sign.parameters))
    bound_args, bound_kwargs = inputs.convert(args, kwargs)
    launch = Launch(kernel.cores, kernel.grid is not None, kernel.__name__)
    programs = [Program(launch, core) for core in range(kernel.cores)]

    def call() -> Any:
        return kernel.func(*bound_args, **bound_kwargs)

    if kernel.cores == 1:
        result = _on(programs[0], call)
    else:
        result = _on_both(launch, programs, call)
        _check_same(programs)
    collected = recordings()
    if collected is not None:
        collected.append(
            Recording(
                kernel.__name__,
                [p.instructions for p in programs],
                [dict(p.budget.peak) for p in programs],
            )
        )
    return inputs.results(result)


def _on(program: Program, call: Callable[[], Any]) -> Any:
    previous = enter(program)
    try:
        return call()
    finally:
        enter(previous)


def _on_both(launch: Launch, programs: list[Program], call: Callable[[], Any]) -> Any:
    results: dict[int, Any] = {}

    def core(program: Program) -> None:
        launch.start(program.core)
        error = None
        try:
            if launch.failed is None:
                results[program.core] = _on(program, call)
        except BaseException as raised:
            error = raised
        finally:
            launch.finish(program.core, error)

    threads = [
        threading.Thread(target=copy_context().run, args=(core, p), daemon=True) for p in programs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if launch.failed is not None:
        raise launch.failed
    return results[0]


def _check_same(programs: list[Program]) -> None:
    """Both cores run one program, so both must have executed the same instructions.

    Raises:
        NkiValidationError: they differ.
    """
    first, second = ([(i.name, i.engine) for i in p.instructions] for p in programs)
    if first == second or not enforced("lnc-control-flow"):
        return
    pairs = list(zip(first, second, strict=False))
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
    mine = first[at] if at < len(first) else "nothing"
    other = second[at] if at < len(second) else "nothing"
    raise NkiValidationError(
        f"the cores diverge at instruction {at}: core 0 executes {mine}, core 1 {other}; choose "
        "data by program id, not instructions",
        rule="lnc-control-flow",
    )
