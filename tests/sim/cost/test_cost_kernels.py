"""Kernels through the simulator into the model: dynamic loops, barriers, gathers, transposes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import dslearn.kernels  # noqa: F401 - decides who is `nki`
from dslearn.sim.cost import profile

nki = pytest.importorskip("nki")
nl, nisa = pytest.importorskip("nki.language"), pytest.importorskip("nki.isa")


@nki.jit
def gated(x, count):
    """Adds rows of blocks of x [B * 128, F] while the block number is below count [1, 1]."""
    y = nl.ndarray((128, x.shape[1]), dtype=x.dtype, buffer=nl.shared_hbm)
    total = nl.ndarray((128, x.shape[1]), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=total, value=0.0)
    limit = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=limit, src=count)
    register = nisa.register_alloc()
    nisa.register_load(dst=register, src=limit)
    blocks = x.reshape((x.shape[0] // 128, 128, x.shape[1]))

    def body(i):
        t = nl.ndarray((128, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=blocks.select(0, i))
        nisa.tensor_tensor(dst=total, data1=total, data2=t, op=nl.add)

    nl.fori_loop(0, register, body)
    nisa.dma_copy(dst=y, src=total)
    return y


def test_a_dynamic_loop_costs_its_trips():
    x = np.ones((16 * 128, 1024), np.float32)
    times = [profile(gated, x, np.array([[n]], np.int32)).us for n in (0, 1, 2, 4, 8, 16)]
    steps = np.diff(times) / np.array([1, 1, 2, 4, 8])
    assert steps[1:] == pytest.approx(steps[1]), "every further trip costs the same"
    assert steps[1] < steps[0] < steps[1] + 2, "the first one also waits for the bound"
    alone = 128 * 4096 / 368e3 + 2 + 2048 / 960
    assert alone < steps[1] < alone + 1, "one tile of memory: load and sum take turns"


@nki.jit
def swapped(x):
    """Each core writes its half of a shared tensor, then reads the other's."""
    core = nl.program_id(axis=0)
    y = nl.ndarray((2, 128, 64), dtype=x.dtype, buffer=nl.shared_hbm)
    z = nl.ndarray((2, 128, 64), dtype=x.dtype, buffer=nl.shared_hbm)
    t = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x[core])
    nisa.dma_copy(dst=y[core], src=t)
    nisa.core_barrier(data=y, cores=(0, 1))
    nisa.dma_copy(dst=t, src=y[1 - core])
    nisa.dma_copy(dst=z[core], src=t)
    return z


def test_data_crosses_a_barrier_in_time():
    x = np.arange(2 * 128 * 64, dtype=np.float32).reshape(2, 128, 64)
    p = profile(swapped[2], x)
    meets = [s for s in p.steps if s.instruction.name == "core_barrier"]
    stores = [s for s in p.steps if s.work.queue == "dma store"]
    loads = [s for s in p.steps if s.work.queue == "dma load"]
    assert len(meets) == 2 and meets[0].start == meets[1].start
    assert meets[0].start >= max(s.finish for s in (stores[0], stores[2]))
    assert min(s.start for s in (loads[1], loads[3])) >= meets[0].finish
    assert p.us > 4 * 2 + 1, "four DMAs one after the other, and the barrier"


@nki.jit
def gathered(table, rows):
    """table[rows], transposed."""
    index = nl.ndarray((128, 1), dtype=nl.uint32, buffer=nl.sbuf)
    nisa.dma_copy(dst=index, src=rows)
    t = nl.ndarray((128, 128), dtype=table.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=table.ap([[128, 128], [1, 128]], vector_offset=index))
    turned = nl.ndarray((128, 128), dtype=table.dtype, buffer=nl.psum)
    nisa.nc_transpose(dst=turned, data=t, engine=nisa.engine.tensor)
    out = nl.ndarray((128, 128), dtype=table.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=out, src=turned)
    y = nl.ndarray((128, 128), dtype=table.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=y, src=out)
    return y


def test_a_gather_waits_for_its_rows():
    table = np.zeros((512, 128), ml_dtypes.bfloat16)
    rows = np.arange(128, dtype=np.uint32).reshape(128, 1)
    p = profile(gathered, table, rows)
    load, gather = (
        s
        for s in p.steps
        if s.instruction.name == "dma_copy" and s.instruction.outputs[0].region.on_chip
    )
    assert gather.work.queue == "gpsimd" and gather.start >= load.finish
    assert gather.work.transfer.rows == 128 and gather.work.transfer.read == 128 * 256
    assert p.busy_us["gpsimd"][0] == pytest.approx(1.28)
    assert [link.name for link in p.path].count("nc_transpose") == 1
