"""For tests of instructions: operator tokens, empty tiles, and the last recorded instruction."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from dslearn.sim.language.allocate import ndarray
from dslearn.sim.language.tokens import TOKENS
from dslearn.sim.memory import MemoryRegion
from dslearn.sim.program import current
from dslearn.sim.record import Instruction
from dslearn.sim.registers import VirtualRegister
from dslearn.sim.tensor import NkiTensor
from tests.support.sim import HBM, SBUF, filled

nl: Any = SimpleNamespace(**TOKENS)


def empty(shape: tuple[int, ...], kind: Any = "float32", region: MemoryRegion = SBUF) -> NkiTensor:
    """A tile that nobody has written."""
    return ndarray(shape, kind, region)


def last() -> Instruction:
    """The instruction that ran last."""
    return current().instructions[-1]


def grid(p: int, n: int, seed: int = 0) -> np.ndarray:
    """Standard normal fp32 [p, n]."""
    return np.random.default_rng(seed).standard_normal((p, n)).astype(np.float32)


def tile(*shape: int, kind: str = "float32") -> NkiTensor:
    """A tile of ones."""
    return filled(np.ones(shape), SBUF, kind)


def rows(*shape: int) -> NkiTensor:
    """Row indices in SBUF, all 0."""
    return filled(np.zeros(shape), SBUF, "int32")


def hbm(*shape: int) -> NkiTensor:
    """Zeros in HBM."""
    return filled(np.zeros(shape), HBM, "int32")


def register() -> VirtualRegister:
    """A register that holds 0."""
    return VirtualRegister(0)
