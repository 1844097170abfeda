"""Calls that trn2 or the stand-in does not have say so; the version says which core this is."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from dslearn.sim.isa import random, trn3
from dslearn.sim.isa.enums import nc_version
from dslearn.sim.isa.versions import get_nc_sub_version, get_nc_version
from tests.support.sim import expect_refusal

TRN3 = [trn3.nc_matmul_mx, trn3.quantize_mx, trn3.activate2, trn3.exponential, trn3.rand2]
RANDOM = [random.rng, random.dropout, random.set_rng_seed, random.rand_set_state,
          random.rand_get_state]  # fmt: skip


def _call(function: Any) -> None:
    needed = [
        p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty
    ]
    function(**dict.fromkeys(needed))


@pytest.mark.parametrize("function", TRN3, ids=lambda f: f.__name__)
def test_trn3_only(function: Any) -> None:
    with expect_refusal("platform", function.__name__, "trn3", kind=NotImplementedError):
        _call(function)


@pytest.mark.parametrize("function", RANDOM, ids=lambda f: f.__name__)
def test_random_numbers_are_not_simulated(function: Any) -> None:
    with expect_refusal("not-simulated", function.__name__, kind=NotImplementedError):
        _call(function)


def test_version_is_that_of_trn2() -> None:
    assert get_nc_version() is nc_version.gen3
    assert nc_version.gen2 < get_nc_version() < nc_version.gen4
    assert get_nc_sub_version() == 0
