"""Loops. Python's `range` (and its three old aliases) unrolls; dynamic loops run on the device.

A dynamic loop's body is compiled once: each trip must execute the same instructions, its index is
a register without a value, and tiles allocated in it end with the trip. State lives in tensors
allocated before the loop. Source: docs/reference/nki.md, section "Registers and dynamic loops".
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dslearn.sim.program import NkiInstruction, Program, current
from dslearn.sim.record import Instruction, Operand
from dslearn.sim.registers import VirtualRegister
from dslearn.sim.rules import ArgumentError, RuleError


def _range(start: int, stop: int | None, step: int) -> range:
    return range(start) if stop is None else range(start, stop, step)


def affine_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """`range`, unrolled when the kernel is compiled (deprecated name)."""
    return _range(start, stop, step)


def sequential_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """`range`, unrolled when the kernel is compiled (deprecated name)."""
    return _range(start, stop, step)


def static_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """`range`, unrolled when the kernel is compiled (deprecated name)."""
    return _range(start, stop, step)


class _Loop:
    """One execution of a dynamic loop: counts trips and compares them."""

    def __init__(self, what: str) -> None:
        self.what, self.program = what, current()
        if not self.program.reorder:
            raise RuleError(
                f"{what} inside nl.no_reorder(): only unrolled loops (range) are allowed there",
                rule="loop",
            )
        self.number, self.trips = self.program.loop_count, 0
        self.program.loop_count += 1
        self.first: list[tuple[Any, ...]] = []

    @contextmanager
    def trip(self) -> Iterator[None]:
        """One trip: instructions carry (loop, trip), tiles born in it end with it."""
        program = self.program
        start = len(program.instructions)
        program.loops.append((self.number, self.trips))
        outer, program.born = program.born, []
        try:
            yield
        finally:
            program.loops.pop()
            for reference in program.born:
                storage = reference()
                if storage is not None:
                    storage.ended = {**storage.ended, program.core: self.what}
            program.born = outer
        self._compare(_shape(program, start))
        self.trips += 1

    def _compare(self, mine: list[tuple[Any, ...]]) -> None:
        if self.trips == 0:
            self.first = mine
        elif mine != self.first:
            pairs = enumerate(zip(self.first, mine, strict=False))
            at = next((i for i, (a, b) in pairs if a != b), min(len(self.first), len(mine)))
            name = (mine[at : at + 1] or self.first[at : at + 1])[0][0]
            raise RuleError(
                f"{self.what}: trip {self.trips} differs from trip 0 at its instruction {at} "
                f"({name}): the body is compiled once, so nothing in it may depend on Python "
                "variables that change; use the index register, or unroll with range",
                rule="loop",
            )


def _shape(program: Program, start: int) -> list[tuple[Any, ...]]:
    """What must not change between trips, for the instructions of the innermost loop itself."""
    depth = len(program.loops) + 1
    own = [i for i in program.instructions[start:] if len(i.loops) == depth]
    return [_fixed(i) for i in own]


def _fixed(i: Instruction) -> tuple[Any, ...]:
    operands = (*i.outputs, *i.inputs)
    return i.name, i.engine, tuple(_place(o) for o in operands)


def _place(o: Operand) -> tuple[Any, ...]:
    return o.region, o.dtype, o.shape, o.strides, o.offset


def _bound(what: str, value: Any) -> int:
    if isinstance(value, VirtualRegister):
        return value.read()
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ArgumentError(f"{what}={value!r}: an int or a register", rule="arguments")


def _values(what: str, lower: Any, upper: Any, step: Any) -> range:
    if not isinstance(step, int) or step < 1:
        raise RuleError(f"{what} step={step!r}: a positive compile-time int", rule="loop")
    return range(_bound(f"{what} lower", lower), _bound(f"{what} upper", upper), step)


def _check_body(what: str, body: Any) -> None:
    """Check that `body` is a function of one argument.

    Raises:
        ArgumentError: it is not.
    """
    try:
        inspect.signature(body).bind(None)
    except TypeError:
        raise ArgumentError(
            f"{what} body_fun={body!r}: a function of one register", rule="arguments"
        ) from None


def fori_loop(lower: Any, upper: Any, body_fun: Callable[[Any], Any], step: int = 1) -> None:
    """body_fun(i) for i = lower, lower + step, ... below upper, on the device.

    Bounds are ints or registers; i is a read-only register for `scalar_offset`.

    Raises:
        RuleError: rule loop: a step that is no positive int, a body that returns something or
            changes between trips, or the loop is inside `no_reorder`.
    """
    values, loop = _values("nl.fori_loop", lower, upper, step), _Loop("nl.fori_loop")
    _check_body("nl.fori_loop", body_fun)
    for value in values:
        with loop.trip():
            result = body_fun(VirtualRegister(value, frozen=True))
            if result is not None and not isinstance(result, NkiInstruction):  # a lambda's
                raise RuleError(
                    "nl.fori_loop: the body returns a value; keep state in tensors allocated "
                    "before the loop",
                    rule="loop",
                )


def while_loop(init: VirtualRegister, body_fun: Callable[[Any], Any]) -> None:
    """register = body_fun(register) while the register is not 0, on the device.

    Raises:
        RuleError: rule loop: the body does not return a register, or changes between trips.
        ArgumentError: `init` is no register.
    """
    register: Any = init
    if not isinstance(register, VirtualRegister):
        raise ArgumentError(f"nl.while_loop init={init!r}: a register", rule="arguments")
    loop = _Loop("nl.while_loop")
    _check_body("nl.while_loop", body_fun)
    while register.read() != 0:
        with loop.trip():
            register = body_fun(register)
            if not isinstance(register, VirtualRegister):
                raise RuleError(
                    f"nl.while_loop: the body returns {register!r}, it must return the register "
                    "that decides about the next trip",
                    rule="loop",
                )


def dynamic_range(start: Any, stop: Any = None, step: int = 1) -> Iterator[VirtualRegister]:
    """The values of `range` as registers, one trip each (deprecated: use fori_loop)."""
    lower, upper = (0, start) if stop is None else (start, stop)
    values, loop = _values("nl.dynamic_range", lower, upper, step), _Loop("nl.dynamic_range")

    def trips() -> Iterator[VirtualRegister]:
        for value in values:
            with loop.trip():
                yield VirtualRegister(value, frozen=True)

    return trips()
