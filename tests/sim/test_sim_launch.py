"""`nki.jit`, launches on one and two cores, what the cores may not do, and the recording."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from dslearn.sim import modules, recording
from dslearn.sim.jit import Kernel, jit, simulate
from dslearn.sim.rules import ArgumentError, NkiValidationError
from tests.support.sim import expect_refusal

NKI = modules.build()
nl, nisa = NKI["nki.language"], NKI["nki.isa"]
X = np.arange(256 * 8, dtype=np.float32).reshape(256, 8)


@jit
def add_one(x, rows=128):
    """Rows split between the cores."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    cores, me = nl.num_programs(0), nl.program_id(0)
    mine = x.shape[0] // cores
    for start in range(me * mine, (me + 1) * mine, rows):
        tile = nl.load(x[start : start + rows])
        nl.store(out[start : start + rows], nl.add(tile, 1.0))
    return out


def test_every_way_to_run_a_kernel():
    plain = simulate(lambda x: add_one.func(x))
    for run in (add_one, add_one[1], add_one[2], simulate(add_one), simulate(add_one[2]), plain):
        assert np.array_equal(run(X), X + 1)
    run = NKI["nki.simulator"].simulate_kernel
    assert np.array_equal(run(add_one, (X,), {"rows": 64}, _lnc=2), X + 1)


def test_jit_keeps_the_function_and_takes_options():
    assert isinstance(add_one, Kernel) and add_one.__name__ == "add_one"
    assert add_one.__doc__ == "Rows split between the cores."
    assert jit(add_one) is add_one
    assert isinstance(jit(mode="torchxla")(add_one.func), Kernel)
    with expect_refusal("arguments", "NEURON_PLATFORM_TARGET_OVERRIDE", kind=TypeError):
        jit(platform_target="trn3")
    with expect_refusal("arguments", "missing a required argument: 'x'", kind=ArgumentError):
        add_one()
    with expect_refusal("arguments", "unexpected keyword argument 'mask'"):
        add_one(X, mask=1)
    with expect_refusal("arguments"):
        simulate(3)


@pytest.mark.parametrize("grid", [0, 3, (2,), "2", 2.0, True, None])
def test_grids_other_than_1_and_2_are_refused_in_the_vendors_words(grid):
    with expect_refusal("lnc", "NKI only supports LNC 1 or 2, but got", kind=NkiValidationError):
        add_one[grid]


@pytest.mark.parametrize("run, cores, ndim", [(0, 1, 0), (1, 1, 1), (2, 2, 1)])
def test_programs_know_where_they_run(run, cores, ndim):
    seen = []

    @jit
    def kernel(x):
        seen.append((nl.program_id(0), nl.num_programs(), nl.num_programs((0,)), nl.program_ndim()))
        return x

    (kernel[run] if run else kernel)(X)
    assert sorted(seen) == [(core, cores, (cores,), ndim) for core in range(cores)]
    with expect_refusal("arguments", "axis 1"):
        nl.program_id(1)


def test_two_cores_equal_one_bit_for_bit_and_execute_the_same_instructions():
    with recording() as launches:
        one, two = add_one(X, rows=64), add_one[2](X, rows=64)
    assert one.tobytes() == two.tobytes()
    assert [len(r.cores) for r in launches] == [1, 2]
    names = [[i.name for i in core] for core in launches[1].cores]
    assert names[0] == names[1] and len(names[0]) * 2 == len(launches[0].cores[0])


def test_diverging_cores_are_refused_and_data_may_differ():
    @jit
    def kernel(x, diverge):
        out = nl.ndarray((2, 4), nl.float32, buffer=nl.shared_hbm)
        me = nl.program_id(0)
        tile = nl.full((1, 4), float(me), nl.float32)
        if diverge and me == 1:
            nisa.memset(tile, 7.0)
        nl.store(out[me : me + 1], tile)
        return out

    assert kernel[2](X, diverge=False).tolist() == [[0] * 4, [1] * 4]
    with expect_refusal(
        "lnc-control-flow", "diverge at instruction 1", "memset", kind=NkiValidationError
    ):
        kernel[2](X, diverge=True)
    with expect_refusal("lnc-control-flow", "both cores allocate the same"):
        jit(lambda x: nl.ndarray((2 + nl.program_id(0), 2), x.dtype, buffer=nl.shared_hbm))[2](X)


def exchange(x, wait):
    """Each core writes its half and reads the other's."""
    shared = nl.ndarray((2, 8), nl.float32, buffer=nl.shared_hbm)
    out = nl.ndarray((2, 8), nl.float32, buffer=nl.shared_hbm)
    me = nl.program_id(0)
    nl.store(shared[me : me + 1], nl.load(x[me : me + 1]))
    if wait:
        nisa.core_barrier(shared, cores=(0, 1))
    theirs = nl.load(shared[1 - me : 2 - me])
    nl.store(out[me : me + 1], theirs)
    return out


def test_reading_the_other_cores_data_needs_a_barrier():
    assert np.array_equal(simulate(exchange)[2](X, wait=True), X[[1, 0]])
    with expect_refusal("uninitialised", "core_barrier"):
        simulate(exchange)[2](X, wait=False)

    def overtaken(x):
        """Core 0 has written, core 1 reads: an order that only this machine has."""
        me = nl.program_id(0)
        nl.store(x[me : me + 1], nl.load(x[me : me + 1]))
        nl.load(x[1 - me : 2 - me])
        return x

    with expect_refusal("lnc-disjoint", "since the last barrier", "core_barrier"):
        simulate(overtaken)[2](X.copy())


def test_cores_that_write_the_same_bytes_are_refused():
    def kernel(x, rows):
        out = nl.ndarray((2, 8), nl.float32, buffer=nl.shared_hbm)
        me = nl.program_id(0)
        start = me if rows == 1 else 0
        nl.store(out[start : start + rows], nl.load(x[0:rows]))
        return out

    assert simulate(kernel)[2](X, rows=1).shape == (2, 8)
    with expect_refusal("lnc-disjoint", "core 1 writes"):
        simulate(kernel)[2](X, rows=2)


def test_an_error_on_one_core_ends_both_and_leaves_no_thread():
    before = threading.active_count()

    @jit
    def kernel(x):
        if nl.program_id(0) == 1:
            raise ZeroDivisionError("on purpose")
        nisa.core_barrier(x, cores=(0, 1))
        return x

    with pytest.raises(ZeroDivisionError, match="on purpose"):
        kernel[2](X.copy())
    assert threading.active_count() == before
    assert np.array_equal(add_one[2](X), X + 1)


def test_sbuf_and_psum_are_each_cores_own():
    @jit
    def kernel(x):
        tile = nl.ndarray((128, 208 * 1024), nl.uint8)
        bank = nl.ndarray((128, 4096), nl.float32, buffer=nl.psum)
        assert tile.on_chip and bank.on_chip
        return x

    with recording() as launches:
        kernel[2](X)
    assert launches[0].peaks == [{"sbuf": 208 * 1024, "psum": 16 * 1024}] * 2


def test_the_recording_names_instructions_operands_and_bytes():
    @jit
    def kernel(x):
        out = nl.ndarray((128, 8), nl.bfloat16, buffer=nl.shared_hbm)
        tile = nl.ndarray((128, 8), nl.float32, name="tile")
        first = nisa.dma_copy(dst=tile, src=x[0:128], name="in")
        half = nl.copy(tile[:, ::2], dtype=nl.bfloat16)
        nisa.dma_copy(dst=out[:, 0:4], src=half).depends_on(first)
        return x

    with recording() as launches:
        kernel(X)
    (recorded,) = launches
    load, cast, save = recorded.cores[0]
    assert recorded.kernel == "kernel" and recorded.peaks == [{"sbuf": 128 // 4 + 8, "psum": 0}]
    assert (load.name, load.label, load.core, load.loops) == ("dma_copy", "in", 0, ())
    assert (load.inputs[0].nbytes, load.outputs[0].name) == (4096, "tile")
    assert (cast.name, cast.engine) == ("tensor_copy", "vector")
    assert (cast.inputs[0].strides, cast.inputs[0].storage) == ((8, 2), load.outputs[0].storage)
    assert (save.outputs[0].dtype, save.outputs[0].nbytes, save.after) == ("bfloat16", 1024, [0])


def test_a_recording_keeps_no_tile_alive():
    @jit
    def kernel(x):
        for _ in range(3):
            nisa.memset(nl.ndarray((128, 50_000), nl.float32), 0.0)
        return x

    with recording() as launches:
        kernel(X)
    assert launches[0].peaks[0]["sbuf"] == 200_000 and len(launches[0].cores[0]) == 3
    kernel(X)
    assert len(launches) == 1, "recorded outside the block"


def test_kernels_do_not_call_kernels():
    with expect_refusal("nested-jit", "outer calls the kernel add_one"):

        @jit
        def outer(x):
            return add_one(x)

        outer(X)
    assert np.array_equal(jit(lambda x: add_one.func(x))(X), X + 1)


def test_kernels_may_call_functions_and_closures():
    scale = 3.0

    def inner(tile):
        return nl.multiply(tile, scale)

    @jit
    def kernel(x, f):
        out = nl.ndarray((128, 8), nl.float32, buffer=nl.shared_hbm)
        nl.store(out, f(inner(nl.load(x[0:128]))))
        return out

    assert np.array_equal(kernel(X, lambda t: nl.add(t, 1.0)), X[:128] * 3 + 1)


def test_with_schedule_changes_no_value():
    ordered = add_one.with_schedule([("b", "a")])
    assert np.array_equal(ordered[2](X), X + 1)
