"""Kernels on two cores for tests of the simulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dslearn.sim.isa.dma import dma_copy
from dslearn.sim.jit import jit
from dslearn.sim.language.allocate import ndarray
from dslearn.sim.program import current
from tests.support.sim import SBUF, SHARED

X = np.arange(64, dtype=np.float32).reshape(8, 8)


def launch(body: Callable[[int, Any, Any], None], cores: int = 2) -> np.ndarray:
    """Run `body(core, x, out)` on the cores; `out` comes back."""

    def kernel(x: Any) -> Any:
        out = ndarray((8, 8), "float32", SHARED, name="out")
        body(current().core, x, out)
        return out

    result: np.ndarray = jit(kernel)[cores](X.copy())
    return result


def half(core: int) -> slice:
    """Rows of a core."""
    return slice(4 * core, 4 * core + 4)


def copy_halves(core: int, x: Any, out: Any) -> None:
    """Each core copies its half of x to its half of out."""
    t = ndarray((4, 8), "float32", SBUF)
    dma_copy(dst=t, src=x[half(core)])
    dma_copy(dst=out[half(core)], src=t)
