"""SBUF and PSUM have the hardware's size, and nobody reads what nobody wrote."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn.sim.access import load, store
from dslearn.sim.isa.copies import memset, tensor_copy
from dslearn.sim.language.allocate import ndarray, tile_size
from dslearn.sim.memory import BANK_BYTES, PSUM_BANKS, SBUF_BYTES
from dslearn.sim.program import Launch, Program, enter
from tests.support.sim import HBM, PSUM, SBUF, expect_refusal, filled, values


@pytest.fixture(autouse=True)
def program():
    """Each test has memories of its own."""
    mine = Program(Launch(1), 0)
    previous = enter(mine)
    yield mine
    enter(previous)


def test_published_limits():
    assert tile_size.sbuf_size_bytes == 208 * 1024 == SBUF_BYTES
    assert (PSUM_BANKS, BANK_BYTES) == (8, 2048)
    assert tile_size.psum_bank_fmax * 4 == tile_size.psum_bank_fmax_bytes == BANK_BYTES


def test_sbuf_holds_208_kib_per_partition_of_live_tiles(program):
    kept = [ndarray((128, 1024), "float32", name=f"t{i}") for i in range(52)]
    with expect_refusal("sbuf-capacity", "'one' needs 1 bytes", "212992 of 212992"):
        ndarray((1, 1), "uint8", name="one")
    kept.pop()
    kept.append(ndarray((128, 1024), "float32"))  # a dropped tile made room
    assert program.budget.peak["sbuf"] == SBUF_BYTES


def test_small_tiles_share_partitions_by_quadrant(program):
    kept = [ndarray((32, SBUF_BYTES), "uint8") for _ in range(4)]
    assert program.budget.peak["sbuf"] == SBUF_BYTES
    with expect_refusal("sbuf-capacity"):
        ndarray((1, 1), "uint8")
    del kept[0]
    assert ndarray((32, SBUF_BYTES), "uint8").size == 32 * SBUF_BYTES


def test_tiles_of_half_the_partitions_take_a_half(program):
    kept = [ndarray((64, SBUF_BYTES), "uint8"), ndarray((33, SBUF_BYTES), "uint8")]
    with expect_refusal("sbuf-capacity"):
        ndarray((1, 1), "uint8")
    del kept[1]
    assert ndarray((64, SBUF_BYTES), "uint8").ndim == 2


def test_a_view_keeps_its_tile_alive(program):
    view = ndarray((128, SBUF_BYTES), "uint8")[:, 0:1]
    with expect_refusal("sbuf-capacity"):
        ndarray((1, 1), "uint8")
    del view
    assert ndarray((128, SBUF_BYTES), "uint8").on_chip


def test_psum_has_eight_banks_and_small_tiles_share_one(program):
    kept = [ndarray((128, 256), "float32", PSUM) for _ in range(16)]
    assert {t.storage.bank for t in kept} == {0, 1024}
    with expect_refusal("psum-capacity", "PSUM is full"):
        ndarray((128, 1), "float32", PSUM)
    kept = kept[:-1]
    kept.append(ndarray((128, 256), "float32", PSUM))
    assert program.budget.peak["psum"] == PSUM_BANKS * BANK_BYTES


def test_psum_tiles_of_one_bank_do_not_cross_a_bank(program):
    kept = [ndarray((128, 300), "float32", PSUM) for _ in range(8)]
    with expect_refusal("psum-capacity"):  # 8 x 848 bytes are free, but no 1200 of them in one bank
        ndarray((128, 300), "float32", PSUM)
    assert ndarray((128, 212), "float32", PSUM).storage.bank == 1200
    del kept


@pytest.mark.parametrize(
    "make, rule",
    [
        (lambda: ndarray((128,), "float32"), "tile-rank"),
        (lambda: ndarray((129, 1), "float32"), "partition-limit"),
        (lambda: ndarray((1, 212993), "uint8"), "sbuf-capacity"),
        (lambda: ndarray((1, 4097), "float32", PSUM), "psum-capacity"),
        (lambda: ndarray((4, 0), "float32"), "shape"),
        (lambda: ndarray((4, 2.0), "float32"), "arguments"),
        (lambda: ndarray(4, "float32", HBM), "arguments"),
        (lambda: ndarray((4, 4), "float32", SBUF, address=(126, 0)), "address"),
        (lambda: ndarray((4, 4), "float32", SBUF, address=(0, 212992 - 15)), "address"),
        (lambda: ndarray((4, 4), "float32", PSUM, address=(0, 1024)), "address"),
        (lambda: ndarray((4, 4), "float32", HBM, address=(0, 0)), "address"),
        (lambda: ndarray((4, 4), "float32", "sbuf"), "arguments"),
    ],
)
def test_allocations_that_the_chip_has_no_place_for(make, rule):
    with expect_refusal(rule):
        make()


def test_the_largest_tiles_and_addresses_are_legal():
    assert ndarray((128, 53248), "float32").shape == (128, 53248)
    assert ndarray((4, 4), "float32", SBUF, address=(124, 212992 - 16)).size == 16
    assert ndarray((128, 4096), "float32", PSUM, address=(0, 0)).size == 128 * 4096
    assert ndarray((1000, 3), "float32", HBM).shape == (1000, 3)
    assert ndarray([np.int64(4), 2], "float32").shape == (4, 2)


@pytest.mark.parametrize("region", [SBUF, PSUM, HBM])
@pytest.mark.parametrize("kind", ["float32", "int32", "bfloat16", "uint8"])
def test_unwritten_elements_are_refused_until_written(region, kind):
    t = ndarray((4, 6), kind, region)
    with expect_refusal("uninitialised", "24 of 24 elements were never written"):
        load(t)
    store(t[:, 0:5], np.zeros((4, 5), load(filled(np.zeros((1, 1)), SBUF, kind)).dtype))
    assert not values(t[:, 0:5]).any()
    with expect_refusal("uninitialised", "4 of 24"):
        load(t)
    store(t[:, 5], values(t[:, 4]))
    assert not values(t).any()


def test_a_half_written_word_is_not_written():
    t = ndarray((2, 3), "int32")
    memset(t.view("uint8")[:, 0:6], 0)  # the first word, and half of the second
    assert values(t[:, 0:1]).tolist() == [[0], [0]]
    with expect_refusal("uninitialised", "2 of 2"):
        load(t[:, 1:2])
    memset(t.view("uint8")[:, 6:12], 1)
    assert values(t)[0].tolist() == [0, 0x01010000, 0x01010101]


def test_the_vendors_fill_shows_in_memory_that_was_not_written():
    assert np.isnan(ndarray((1, 2), "float32").storage.data.view(np.float32)).all()
    assert (ndarray((1, 2), "int32").storage.data.view(np.int32) == 4).all()


def test_a_nan_that_was_written_is_data():
    t = filled(np.full((2, 2), np.nan, np.float32))
    u = ndarray((2, 2), "float32")
    tensor_copy(u, t)
    assert np.isnan(values(u)).all()


def test_broadcast_views_are_read_but_not_written():
    t = filled(np.ones((4, 1), np.float32))
    wide = t.broadcast(1, 5)
    assert values(wide).shape == (4, 5)
    with expect_refusal("view", "broadcast view"):
        memset(wide, 0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 128), st.integers(1, 60_000)), max_size=40))
def test_what_is_freed_can_be_used_again(sizes):
    mine = Program(Launch(1), 0)
    previous = enter(mine)
    try:
        for rows, row in sizes:
            ndarray((rows, row), "uint8")  # dropped at once
        assert mine.budget.sbuf == [0, 0, 0, 0]
        assert mine.budget.peak["sbuf"] == max((row for _, row in sizes), default=0)
    finally:
        enter(previous)
