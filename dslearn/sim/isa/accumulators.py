"""The accumulator registers of the Vector and Scalar engines: one fp32 per lane.

They keep their values between instructions, which reduce into them as `reduce_cmd` says and read
them out into `reduce_res`. L lanes (partitions).
Source: docs/reference/nki.md, section "Reductions".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dslearn.sim.access import store32
from dslearn.sim.isa import operands
from dslearn.sim.isa.enums import member, reduce_cmd
from dslearn.sim.memory import PARTITIONS
from dslearn.sim.numerics.alu import OPS
from dslearn.sim.numerics.scan import IDENTITY
from dslearn.sim.program import current
from dslearn.sim.rules import RuleError
from dslearn.sim.tensor import NkiTensor


def _registers(engine: str) -> tuple[np.ndarray, np.ndarray]:
    """Values, fp32 [128], and whether they are known, bool [128]."""
    held = current().accumulators
    if engine not in held:
        held[engine] = np.zeros(PARTITIONS, np.float32), np.zeros(PARTITIONS, np.bool_)
    return held[engine]


def lanes(t: NkiTensor) -> slice:
    """The lanes that an instruction over tile `t` occupies."""
    start = t.offset // t.row_elements
    return slice(start, start + t.shape[0])


def command(at: str, value: Any, allowed: tuple[reduce_cmd, ...]) -> reduce_cmd:
    """`value` as one of the commands that instruction `at` has.

    Raises:
        RuleError: another command (rule operand).
        ArgumentError: not a command.
    """
    cmd = member(reduce_cmd, value, f"{at} reduce_cmd")
    if cmd not in allowed:
        names = " or ".join(f"reduce_cmd.{c.name}" for c in allowed)
        raise RuleError(f"{at} reduce_cmd={cmd.name}: must be {names}", rule="operand")
    return cmd


def initial(engine: str, name: str, cmd: reduce_cmd, where: slice, given: Any = None) -> np.ndarray:
    """What lanes `where` hold before an instruction reduces with operator `name`: fp32 [L].

    Raises:
        RuleError: `reduce` on registers that nothing has reset (rule uninitialised).
    """
    if cmd is reduce_cmd.load_reduce:
        value = np.asarray(given, np.float32).reshape(-1)
        return np.broadcast_to(value, (where.stop - where.start,))
    if cmd is reduce_cmd.reduce:
        return read(engine, where)
    return np.full(where.stop - where.start, IDENTITY[name], np.float32)


def accumulate(engine: str, name: str, start: np.ndarray, part: np.ndarray, where: slice) -> None:
    """Set lanes `where` to `start op part`, both fp32 [L]."""
    keep(engine, OPS[name](start, part), where)


def keep(engine: str, values: np.ndarray, where: slice) -> None:
    """Set lanes `where` to `values`, fp32 [L]."""
    held, known = _registers(engine)
    held[where], known[where] = values, True


def forget(engine: str, where: slice) -> None:
    """Lanes `where` hold nobody knows what."""
    _registers(engine)[1][where] = False


def read(engine: str, where: slice) -> np.ndarray:
    """Values of lanes `where`: fp32 [L], a copy.

    Raises:
        RuleError: nothing has reset them (rule uninitialised).
    """
    values, known = _registers(engine)
    if not known[where].all():
        raise RuleError(
            f"the {engine} engine's accumulators are used before they were reset: begin with "
            "reduce_cmd.reset_reduce",
            rule="uninitialised",
        )
    return values[where].copy()


def read_out(engine: str, dst: NkiTensor, where: slice, negate: bool = False) -> None:
    """Write lanes `where` to the (L, 1) tile `dst`, rounded to its dtype.

    Raises:
        RuleError: nothing has reset them (rule uninitialised).
    """
    values = read(engine, where)
    store32(dst, -values if negate else values)


def result_tile(at: str, value: Any, p: int) -> NkiTensor | None:
    """`reduce_res`: None or a (P, 1) tile.

    Raises:
        RuleError: another shape (rule operand), dtype or memory.
    """
    return None if value is None else operands.column(at, "reduce_res", value, p)
