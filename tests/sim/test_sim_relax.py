"""Rules that can be relaxed: a warning instead of a refusal, inside a block, on both cores."""

from __future__ import annotations

import numpy as np
import pytest

import dslearn.sim
from dslearn.errors import UsageError
from dslearn.sim.rules import RELAXABLE, RULES, NkiValidationError, RuleError

dslearn.sim.install()

import nki  # noqa: E402
import nki.isa as nisa  # noqa: E402
import nki.language as nl  # noqa: E402

ONES = np.ones((32, 32), np.float32)


@nki.jit
def onto_zeros(x):
    tile = nl.ndarray((32, 32), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    total = nl.zeros((32, 32), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=total, stationary=tile, moving=tile, accumulate=True)
    nisa.tensor_copy(dst=tile, src=total)
    out = nl.ndarray((32, 32), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def both_write(x):
    tile = nl.ndarray((32, 32), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    if nl.program_id(0) == 0:
        nisa.memset(dst=tile, value=7.0)
    out = nl.ndarray((32, 32), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


def test_a_relaxed_rule_warns_and_goes_on() -> None:
    with pytest.raises(RuleError, match="psum-accumulate"):
        nki.simulate(onto_zeros)(ONES)
    with dslearn.sim.relax("psum-accumulate"), pytest.warns(UserWarning, match="psum-accumulate"):
        np.testing.assert_array_equal(nki.simulate(onto_zeros)(ONES), 32 * ONES)


def test_relaxing_reaches_both_cores() -> None:
    with pytest.raises(RuleError, match="lnc-disjoint"):
        nki.simulate(both_write[2])(ONES)
    with (
        dslearn.sim.relax("lnc-disjoint"),
        pytest.raises(NkiValidationError, match="lnc-control-flow"),
        pytest.warns(UserWarning, match="lnc-disjoint"),
    ):
        nki.simulate(both_write[2])(ONES)
    with (
        dslearn.sim.relax("lnc-disjoint", "lnc-control-flow"),
        pytest.warns(UserWarning) as warned,
    ):
        np.testing.assert_array_equal(nki.simulate(both_write[2])(ONES), ONES)  # core 1 ran last
    named = {str(w.message).split()[1] for w in warned}
    assert named == {"lnc-disjoint", "lnc-control-flow"}


def test_only_rules_that_leave_a_value_can_be_relaxed() -> None:
    assert set(RELAXABLE) < set(RULES)
    with (
        pytest.raises(UsageError, match="bounds.*must be one of lnc-control-flow"),
        dslearn.sim.relax("bounds"),
    ):
        pass


def test_activation_sums_when_only_a_result_is_given() -> None:
    @nki.jit
    def row_sums(x):
        tile = nl.ndarray((32, 32), dtype=nl.float32, buffer=nl.sbuf)
        sums = nl.ndarray((32, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x)
        for _ in range(2):  # the second sum starts at zero again
            nisa.activation(dst=tile, op=nl.copy, data=tile, reduce_op=nl.add, reduce_res=sums)
        out = nl.ndarray((32, 1), dtype=nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=sums)
        return out

    np.testing.assert_array_equal(nki.simulate(row_sums)(ONES), np.full((32, 1), 32.0, np.float32))
