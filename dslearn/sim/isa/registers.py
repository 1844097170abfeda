"""Runtime scalars: register_alloc, register_move, register_load, register_store.

Source: docs/reference/nki.md, section "Registers and dynamic loops".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dslearn.sim.access import load, store
from dslearn.sim.dtypes import INTEGERS, NUMPY, WORDS
from dslearn.sim.isa import checks, descriptors
from dslearn.sim.program import NkiInstruction, current
from dslearn.sim.registers import VirtualRegister
from dslearn.sim.rules import ArgumentError, RuleError
from dslearn.sim.tensor import NkiTensor


def register_alloc(x: int | None = None) -> VirtualRegister:
    """A register holding the compile-time integer `x`, or nothing.

    Raises:
        ArgumentError: `x` is not an integer; tiles are loaded with register_load.
        RuleError: it does not fit 32 bits (rule operand).
    """
    register = VirtualRegister()
    if x is not None:
        register.write(_constant("register_alloc", x))
    return register


def register_move(dst: VirtualRegister, src: Any) -> NkiInstruction:
    """dst = src, a compile-time integer or another register.

    Raises:
        ArgumentError: another kind of source, an empty register, or dst is a loop index.
    """
    value = src.read() if isinstance(src, VirtualRegister) else _constant("register_move", src)
    _register("register_move", "dst", dst).write(value)
    return current().emit("register_move", "sync", (), ())


def register_load(dst: VirtualRegister, src: NkiTensor) -> NkiInstruction:
    """dst = the one integer in `src`, in HBM or SBUF.

    Raises:
        RuleError: rules region, operand (more than one element), dtype (a float), uninitialised.
    """
    src = _one("register_load", "src", src)
    value = int(load(src, "register_load src").reshape(-1)[0])
    _register("register_load", "dst", dst).write(value)
    return current().emit("register_load", "sync", (), (src,))


def register_store(dst: NkiTensor, src: VirtualRegister) -> NkiInstruction:
    """The one integer of `dst`, in HBM or SBUF = src, low bits when dst is narrower.

    Raises:
        RuleError: rules region, operand (more than one element), dtype (a float).
        ArgumentError: `src` is not a register, or is empty.
    """
    dst = _one("register_store", "dst", dst)
    value = _register("register_store", "src", src).read()
    word = np.array([value & ((1 << (8 * dst.itemsize)) - 1)], WORDS[dst.itemsize])
    store(dst, word.view(NUMPY[dst.dtype]))
    return current().emit("register_store", "sync", (dst,), ())


def _constant(op: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ArgumentError(
            f"{op} of {value!r}: a compile-time integer (register_load reads a tile)",
            rule="arguments",
        )
    if not -(2**31) <= value < 2**32:
        raise RuleError(f"{op} of {value}: registers have 32 bits", rule="operand")
    return int(value)


def _register(op: str, operand: str, value: Any) -> VirtualRegister:
    if isinstance(value, VirtualRegister):
        return value
    raise ArgumentError(
        f"{op} {operand} must be a register (register_alloc), got {value!r}", rule="arguments"
    )


def _one(op: str, operand: str, value: Any) -> NkiTensor:
    t = descriptors.operand(op, operand, checks.tensor(op, operand, value))
    if t.size != 1:
        raise RuleError(f"{op} {operand} {t!r}: must have exactly one element", rule="operand")
    if t.dtype not in INTEGERS:
        raise RuleError(f"{op} {operand} is {t.dtype}: registers hold integers", rule="dtype")
    return t
