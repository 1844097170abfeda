"""Two cores: what barriers order, what deadlocks, what races."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dslearn.sim import recording
from dslearn.sim.isa.copies import memset
from dslearn.sim.isa.cores import core_barrier, sendrecv
from dslearn.sim.isa.dma import dma_copy
from dslearn.sim.isa.enums import dge_mode, engine, oob_mode
from dslearn.sim.language.allocate import ndarray
from tests.support.cores import X, copy_halves, half, launch
from tests.support.sim import HBM, SBUF, SHARED, expect_refusal


def test_halves_need_no_barrier() -> None:
    assert np.array_equal(launch(copy_halves), X)


def test_a_barrier_orders_what_the_other_core_wrote() -> None:
    def body(core: int, x: Any, out: Any) -> None:
        scratch = ndarray((8, 8), "float32", SHARED, name="scratch")
        copy_halves(core, x, scratch)
        core_barrier(data=scratch, cores=(0, 1))
        t = ndarray((4, 8), "float32", SBUF)
        dma_copy(dst=t, src=scratch[half(1 - core)])
        dma_copy(dst=out[half(core)], src=t)

    assert np.array_equal(launch(body), np.concatenate([X[4:], X[:4]]))


@pytest.mark.parametrize("wait_on_out", [False, True])
def test_reading_the_other_half_without_its_barrier_is_a_race(wait_on_out: bool) -> None:
    def body(core: int, x: Any, out: Any) -> None:
        scratch = ndarray((8, 8), "float32", SHARED, name="scratch")
        copy_halves(core, x, scratch)
        if wait_on_out:
            core_barrier(data=out, cores=(0, 1))
        else:
            t = ndarray((1, 1), "float32", SBUF)
            memset(dst=t, value=0.0)
            sendrecv(t, t, 1 - core, 1 - core, 0)
        dma_copy(dst=out[half(core)], src=scratch[half(1 - core)])

    with expect_refusal("lnc-disjoint", "scratch", "touched since the last barrier on it"):
        launch(body)


def test_both_cores_writing_a_row_is_a_race_and_reading_it_is_not() -> None:
    def writes(core: int, x: Any, out: Any) -> None:
        dma_copy(dst=out[core : core + 2], src=x[0:2])

    def reads(core: int, x: Any, out: Any) -> None:
        dma_copy(dst=out[half(core)], src=x[2:6])

    with expect_refusal("lnc-disjoint", "core 1 writes"):
        launch(writes)
    assert np.array_equal(launch(reads), np.concatenate([X[2:6], X[2:6]]))


def test_writing_what_the_other_core_reads_is_a_race() -> None:
    def body(core: int, x: Any, out: Any) -> None:
        dma_copy(dst=out[half(core)], src=x[half(core)])
        dma_copy(dst=x[(core + 4) % 8 : (core + 4) % 8 + 1], src=x[core : core + 1])

    with expect_refusal("lnc-disjoint"):
        launch(body)


def test_skipped_rows_do_not_race() -> None:
    def body(core: int, x: Any, out: Any) -> None:
        index, t = ndarray((1, 1), "int32", SBUF), ndarray((1, 8), "float32", SBUF)
        memset(dst=t, value=float(core))
        memset(dst=index, value=99)
        for rows in range(8):
            memset(dst=t, value=float(rows))
            target = out.ap([[8, 1], [1, 8]], vector_offset=index)
            dma_copy(dst=target, src=t, oob_mode=oob_mode.skip)
            dma_copy(dst=t, src=target, oob_mode=oob_mode.skip, dge_mode=dge_mode.swdge)
        copy_halves(core, x, out)

    assert np.array_equal(launch(body), X)


@pytest.mark.parametrize("lonely", [0, 1])
def test_a_core_that_waits_alone_is_told(lonely: int) -> None:
    def body(core: int, x: Any, out: Any) -> None:
        copy_halves(core, x, out)
        if core == lonely:
            core_barrier(data=out, cores=(0, 1))

    words = f"core {lonely} waits at core_barrier on `out`, core {1 - lonely} has ended"
    with expect_refusal("lnc-barrier", words):
        launch(body)


def test_cores_that_wait_at_different_places_are_told() -> None:
    def body(core: int, x: Any, out: Any) -> None:
        if core == 0:
            core_barrier(data=out, cores=(0, 1))
        else:
            t = ndarray((1, 1), "float32", SBUF)
            memset(dst=t, value=0.0)
            sendrecv(t, t, 0, 0, pipe_id=3)

    with expect_refusal(
        "lnc-barrier", "core 1 waits at sendrecv pipe 3, core 0 waits at core_barrier"
    ):
        launch(body)

    def two_pipes(core: int, x: Any, out: Any) -> None:
        t = ndarray((1, 1), "float32", SBUF)
        memset(dst=t, value=0.0)
        sendrecv(t, t, 1 - core, 1 - core, pipe_id=core)

    with expect_refusal("lnc-barrier", "sendrecv pipe 1", "sendrecv pipe 0"):
        launch(two_pipes)

    def two_tensors(core: int, x: Any, out: Any) -> None:
        a, b = (ndarray((1, 1), "float32", SHARED) for _ in range(2))
        core_barrier(data=(a, b)[core], cores=(0, 1))

    with expect_refusal("lnc-barrier", "core_barrier on `(1, 1) float32`"):
        launch(two_tensors)


def test_barriers_refuse_and_single_cores_pass() -> None:
    def on(data: str, cores: Any, who: Any = engine.gpsimd) -> Callable[[int, Any, Any], None]:
        def body(core: int, x: Any, out: Any) -> None:
            private = ndarray((1, 1), "float32", HBM)
            core_barrier({"out": out, "x": x, "private": private}[data], cores, who)
            copy_halves(core, x, out)

        return body

    for legal in ("gpsimd", "sync", "scalar"):
        assert np.array_equal(launch(on("out", (0, 1), engine[legal])), X)
    assert np.array_equal(launch(on("x", (0, 1))), X), "the arguments of two cores are shared"
    with expect_refusal("region", "must be in ['shared_hbm'], got private_hbm"):
        launch(on("private", (0, 1)))
    with expect_refusal("arguments", "only (0, 1)", kind=TypeError):
        launch(on("out", (0, 2)))
    with expect_refusal("engine", "dma"):
        launch(on("out", (0, 1), engine.dma))
    with expect_refusal("lnc-barrier", "kernel[2]"):
        launch(on("out", (0, 1)), cores=1)

    def alone(core: int, x: Any, out: Any) -> None:
        core_barrier(out, (0))
        dma_copy(dst=out, src=x)

    assert np.array_equal(launch(alone, cores=1), X)


def test_an_error_of_one_core_ends_the_launch() -> None:
    def body(core: int, x: Any, out: Any) -> None:
        if core == 1:
            raise ZeroDivisionError("core 1")
        core_barrier(data=out, cores=(0, 1))

    with pytest.raises(ZeroDivisionError, match="core 1"):
        launch(body)


def test_many_barriers_alternate_writers() -> None:
    def body(core: int, x: Any, out: Any) -> None:
        t = ndarray((1, 8), "float32", SBUF)
        memset(dst=t, value=0.0)
        dma_copy(dst=out[half(core)], src=x[half(core)])
        for step in range(6):
            core_barrier(data=out, cores=(0, 1))
            row = (step + 4 * core) % 8  # each trip a row that the other core wrote before
            dma_copy(dst=t, src=out[row : row + 1])
            core_barrier(data=out, cores=(0, 1))
            row = (row + 1) % 8
            dma_copy(dst=out[row : row + 1], src=t)

    expected = X.copy()
    for step in range(6):
        rows = [(step + 4 * core) % 8 for core in range(2)]
        new = expected[rows].copy()
        expected[[(r + 1) % 8 for r in rows]] = new
    assert np.array_equal(launch(body), expected)


def test_the_recording_has_both_cores() -> None:
    with recording() as launches:
        launch(copy_halves)
    names = [[i.name for i in core] for core in launches[0].cores]
    assert names == [["dma_copy", "dma_copy"]] * 2
    assert [i.core for i in launches[0].cores[1]] == [1, 1]
