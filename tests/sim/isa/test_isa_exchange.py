"""sendrecv: tiles that two cores swap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dslearn.sim.isa.copies import memset
from dslearn.sim.isa.cores import sendrecv
from dslearn.sim.isa.dma import dma_copy
from dslearn.sim.isa.enums import dma_engine
from dslearn.sim.language.allocate import ndarray
from tests.support.cores import X, copy_halves, half, launch
from tests.support.sim import SBUF, expect_refusal


def test_an_exchange_swaps_tiles_again_and_again() -> None:
    def body(core: int, x: Any, out: Any) -> None:
        mine, theirs = ndarray((4, 8), "float32", SBUF), ndarray((128, 8), "float32", SBUF)
        dma_copy(dst=mine, src=x[half(core)])
        there = theirs[17:21]  # DMA reaches any partition
        for trip in range(3):
            sendrecv(mine, there, 1 - core, 1 - core, pipe_id=trip)
            sendrecv(there, mine, 1 - core, 1 - core, 0, dma_engine=dma_engine.gpsimd_dma)
        dma_copy(dst=out[half(core)], src=there)

    assert np.array_equal(launch(body), np.concatenate([X[4:], X[:4]]))


def tile(rows: int, columns: int, kind: str) -> Any:
    t = ndarray((rows, columns), kind, SBUF)
    memset(dst=t, value=1)
    return t


@pytest.mark.parametrize(("kind", "most"), [("float32", 256), ("bfloat16", 256), ("uint8", 256)])
def test_gpsimd_exchanges_a_limited_row(kind: str, most: int) -> None:
    def body(columns: int) -> Callable[[int, Any, Any], None]:
        def run(core: int, x: Any, out: Any) -> None:
            t = tile(2, columns, kind)
            sendrecv(t, t, 1 - core, 1 - core, 0, dma_engine.gpsimd_dma)
            copy_halves(core, x, out)

        return run

    assert np.array_equal(launch(body(most)), X)
    with expect_refusal("operand", "bytes per partition"):
        launch(body(most + 1))


def test_exchanges_refuse() -> None:
    def body(send: Any) -> Callable[[int, Any, Any], None]:
        return lambda core, x, out: send(core, x)

    with expect_refusal("operand", "must be the other core, 1"):
        launch(body(lambda core, x: sendrecv(tile(2, 2, "int8"), tile(2, 2, "int8"), 0, 0, 0)))
    with expect_refusal("shape", "must have the same shape"):
        launch(body(lambda c, x: sendrecv(tile(2, 2, "int8"), tile(2, 3, "int8"), 1 - c, 1 - c, 0)))
    with expect_refusal("dtype"):
        launch(
            body(lambda c, x: sendrecv(tile(2, 2, "int8"), tile(2, 2, "uint8"), 1 - c, 1 - c, 0))
        )
    with expect_refusal("region", "must be in ['sbuf'], got shared_hbm"):
        launch(body(lambda c, x: sendrecv(x, tile(8, 8, "float32"), 1 - c, 1 - c, 0)))
    with expect_refusal("shape", "both cores exchange the same kind"):
        launch(
            body(
                lambda c, x: sendrecv(
                    tile(2 + c, 2, "int8"), tile(2 + c, 2, "int8"), 1 - c, 1 - c, 0
                )
            )
        )
    with expect_refusal("lnc-barrier", "kernel[2]"):
        launch(
            body(lambda c, x: sendrecv(tile(2, 2, "int8"), tile(2, 2, "int8"), 1, 1, 0)), cores=1
        )
