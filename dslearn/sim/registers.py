"""Runtime scalars: 32-bit registers of an engine's sequencer.

Python runs when a kernel is compiled, so a register has no value there: using it in `if`, `int()`,
`range()` or arithmetic is refused, as the vendor's tracer refuses it.
Source: docs/reference/nki.md, section "Registers and dynamic loops".
"""

from __future__ import annotations

from typing import NoReturn

from dslearn.sim.rules import ArgumentError
from dslearn.sim.values import RuntimeValue


class VirtualRegister(RuntimeValue):
    """One 32-bit integer known only at run time; `frozen` for a loop's index."""

    __slots__ = ("frozen", "state")

    def __init__(self, state: int | None = None, frozen: bool = False) -> None:
        self.state, self.frozen = state, frozen

    def read(self) -> int:
        """Its value, for the simulator only.

        Raises:
            ArgumentError: nothing was loaded into it.
        """
        if self.state is None:
            raise ArgumentError("a register is read before it was loaded", rule="register")
        return self.state

    def write(self, value: int) -> None:
        """Set it, wrapped to 32 signed bits.

        Raises:
            ArgumentError: it is a loop index.
        """
        if self.frozen:
            raise ArgumentError("a loop's index register cannot be written", rule="register")
        self.state = (int(value) + 2**31) % 2**32 - 2**31

    def refuse(self) -> NoReturn:
        """Say what registers are for."""
        raise ArgumentError(
            "a register has no value when Python runs: loop with nl.fori_loop or nl.while_loop, "
            "compute in a (1,1) int32 tile, pass it as scalar_offset",
            rule="register",
        )

    def __repr__(self) -> str:
        return "VirtualRegister(frozen)" if self.frozen else "VirtualRegister()"
