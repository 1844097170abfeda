"""View methods and instructions take integers and handles; anything else is an ArgumentError."""

from __future__ import annotations

import numpy as np
import pytest

from dslearn.sim import modules
from dslearn.sim.rules import ArgumentError
from tests.support.sim import expect_refusal, filled, values

NKI = modules.build()
nl, nisa = NKI["nki.language"], NKI["nki.isa"]
DATA = np.arange(32 * 12, dtype=np.float32).reshape(32, 3, 4)

WRONG = {
    "index 1.0": lambda t: t[:, 1.0],
    "index True": lambda t: t[:, True],
    "index list": lambda t: t[:, [0, 1]],
    "ds": lambda t: t[:, nl.ds(0, 1.5)],
    "select": lambda t: t.select(1, 1.0),
    "slice": lambda t: t.slice(1, 0.0, 2),
    "dimension": lambda t: t.slice("free", 0, 2),
    "broadcast": lambda t: t[:, 0:1].broadcast(1, 2.0),
    "reshape": lambda t: t.reshape((32, 12.0)),
    "reshape_dim": lambda t: t.reshape_dim(2, (2.0, 2)),
    "ap pair": lambda t: t.ap([[12, 32], [1, 4.5]]),
    "ap offset": lambda t: t.ap([[12, 32], [1, 4]], offset=0.5),
    "address": lambda t: nl.ndarray((4, 4), nl.float32, address=(0.5, 0)),
    "shuffle": lambda t: nisa.nc_stream_shuffle(dst=t, src=t, shuffle_mask=[0.0] * 32),
    "mask": lambda t: nisa.nc_stream_shuffle(dst=t, src=t, shuffle_mask=0),
    "depends_on": lambda t: nisa.memset(dst=t, value=0.0).depends_on("name"),
}


@pytest.mark.parametrize("name", WRONG)
def test_numbers_that_are_no_integers_are_refused(name):
    with expect_refusal("arguments", kind=ArgumentError):
        WRONG[name](filled(DATA))


def test_numpy_integers_are_integers():
    t, one, two = filled(DATA), np.int64(1), np.int32(2)
    for view, want in (
        (t[:, one], DATA[:, 1]),
        (t.slice(one, 0, two), DATA[:, :2]),
        (t.reshape((np.int64(32), 12)), DATA.reshape(32, 12)),
        (t.ap([[12, 32], [one, np.int64(4)]], offset=np.int64(4)), DATA[:, 1]),
        (t[:, 0:1].broadcast(one, two), DATA[:, [0, 0]]),
    ):
        assert np.array_equal(values(view), want)


@pytest.mark.parametrize(
    "make, rule",
    [
        (lambda t: t.flatten_dims(2, 1), "view"),
        (lambda t: t[:, 0:1].broadcast(1, 0), "view"),
        (lambda t: t.ap([[12, 32, 1]]), "bounds"),
        (lambda t: t.ap([]), "bounds"),
        (lambda t: t.ap([[12, 32], [1, 0]]), "bounds"),
    ],
)
def test_views_of_nothing_are_refused(make, rule):
    t = filled(DATA)
    assert np.array_equal(values(t.flatten_dims(1, 2)), DATA.reshape(32, 12))
    with expect_refusal(rule):
        make(t)


def test_an_engine_takes_64k_elements_per_partition():
    tile = nl.ndarray((1, 65_537), nl.uint8)
    with expect_refusal("operand", "65537 elements per partition", "at most 65536"):
        nisa.memset(dst=tile, value=1)
    nisa.memset(dst=tile[:, :65_536], value=1)
    assert int(values(tile[:, :65_536]).sum()) == 65_536


def test_a_tensor_without_a_name_is_described_by_its_shape():
    with expect_refusal("bounds", "tensor `NkiTensor((32, 3, 4), float32, sbuf)` on dimension 1"):
        filled(DATA)[:, 3]
    named = nl.ndarray((32, 3), nl.float32, name="gate")
    with expect_refusal(
        "bounds", "tensor `gate` on dimension 1: index range [3, 3] exceed dimension"
    ):
        named[:, 3]
