"""What a dynamic loop's body may be and return, and shared tensors born in it on two cores."""

from __future__ import annotations

import numpy as np
import pytest

from dslearn.sim import modules
from dslearn.sim.rules import ArgumentError
from tests.support.sim import expect_refusal, filled, values

NKI = modules.build()
nki, nl, nisa = NKI["nki"], NKI["nki.language"], NKI["nki.isa"]
X = np.arange(64, dtype=np.float32).reshape(8, 8)


def test_a_lambda_may_be_one_instruction():
    total = filled(np.zeros((1, 1), np.int32))
    again = nl.fori_loop(
        0, 5, lambda i: nisa.tensor_scalar(dst=total, data=total, op0=nl.add, operand0=2)
    )
    assert again is None and values(total) == 10
    with expect_refusal("loop", "the body returns a value"):
        nl.fori_loop(0, 5, lambda i: total)


@pytest.mark.parametrize("body", [None, 3, lambda: None, lambda i, j: None])
@pytest.mark.parametrize("loop", ["fori_loop", "while_loop"])
def test_a_body_is_a_function_of_one_register(loop, body):
    start = (0, 2) if loop == "fori_loop" else (nisa.register_alloc(1),)
    with expect_refusal("arguments", f"nl.{loop} body_fun=", "one register", kind=ArgumentError):
        getattr(nl, loop)(*start, body)
    seen = []
    nl.fori_loop(0, 2, lambda i, bound=7: seen.append(bound))
    assert seen == [7, 7]


def test_no_reorder_takes_nothing():
    with expect_refusal("arguments", "nl.no_reorder()", kind=TypeError):
        nl.no_reorder(3)
    tile = filled(np.zeros((1, 1), np.float32))
    with nl.no_reorder():
        nisa.memset(dst=tile, value=1.0)
    assert values(tile) == 1


@nki.jit
def through_shared(x, escape):
    """Copies x by a shared tensor of each trip; with `escape` reads one after the loop."""
    half, me = x.shape[0] // nl.num_programs(0), nl.program_id(0)
    mine = slice(me * half, (me + 1) * half)
    out, kept = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm), []

    def body(_):
        step = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=step[mine], src=x[mine])
        nisa.dma_copy(dst=out[mine], src=step[mine])
        kept.append(step)

    nl.fori_loop(0, 3, body)
    if escape:
        nisa.dma_copy(dst=out[mine], src=kept[0][mine])
    return out


@pytest.mark.parametrize("cores", [1, 2])
def test_shared_tensors_of_a_trip_end_with_it_on_each_core(cores):
    assert np.array_equal(through_shared[cores](X, escape=False), X)
    with expect_refusal("loop", "that is over"):
        through_shared[cores](X, escape=True)


@pytest.mark.parametrize("cores", [1, 2])
def test_a_failed_launch_leaves_nothing_for_the_next(cores):
    @nki.jit
    def failing(x):
        with nl.no_reorder():
            nisa.memset(nl.ndarray((128, 50_000), nl.float32), 0.0)
            raise KeyError("the kernel's own")

    for _ in range(2):
        with pytest.raises(KeyError, match="own"):
            failing[cores](X)
        assert np.array_equal(through_shared[cores](X, escape=False), X)
