"""Registers: 32 bits, loads and stores of one element."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dslearn.sim.isa.registers import (
    register_alloc,
    register_load,
    register_move,
    register_store,
)
from dslearn.sim.language.allocate import ndarray
from dslearn.sim.registers import VirtualRegister
from tests.support.sim import HBM, PSUM, SBUF, expect_refusal, filled, values


@given(st.integers(-(2**31), 2**31 - 1))
def test_registers_keep_32_bits(value: int) -> None:
    tile, out = filled(np.array([[value]]), kind="int32"), ndarray((1, 1), "uint32", SBUF)
    first, second = register_alloc(), register_alloc(0)
    register_load(first, tile)
    register_move(second, first)
    register_store(out, second)
    assert values(out)[0, 0] == value % 2**32
    low = ndarray((1,), "int8", HBM)
    register_store(low, second)
    assert values(low)[0] == (value + 128) % 256 - 128


def test_registers_refuse() -> None:
    tile, register = filled(np.zeros((1, 2), np.int32)), register_alloc()
    with expect_refusal("operand", "exactly one element"):
        register_load(register, tile)
    with expect_refusal("dtype", "registers hold integers"):
        register_load(register, filled(np.zeros((1, 1), np.float32)))
    with expect_refusal("region", "MemoryRegion.psum"):
        register_load(register, filled(np.zeros((1, 1), np.int32), PSUM))
    with expect_refusal("uninitialised"):
        register_load(register, ndarray((1, 1), "int32", SBUF))
    with expect_refusal("register", "before it was loaded", kind=TypeError):
        register_store(tile[:, 0:1], register)
    with expect_refusal("arguments", "compile-time integer", kind=TypeError):
        register_alloc(1.0)  # type: ignore[arg-type]
    with expect_refusal("arguments", "must be a register", kind=TypeError):
        register_move(3, 4)  # type: ignore[arg-type]
    with expect_refusal("operand", "32 bits"):
        register_move(register, 2**32)
    with expect_refusal("register", "cannot be written", kind=TypeError):
        register_move(VirtualRegister(1, frozen=True), 4)
    register_load(register, tile[:, 1:2])
    assert register.read() == 0
