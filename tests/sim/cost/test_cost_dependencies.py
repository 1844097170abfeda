"""Who waits for whom: by bytes, by memory, by loops; regions against sets of bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn.sim.cost.dependencies import edges
from dslearn.sim.cost.geometry import LINEAR, covers, overlap, partitions, region, run
from dslearn.sim.cost.schedule import dependencies
from tests.support.cost import copy, launch, part, product, tile
from tests.support.cost import run as instruction


def waits(*instructions):
    """For each instruction: {index waited for: why}."""
    return [{e.before: e.why for e in found} for found in edges(list(instructions))]


def columns(o, first, last):
    return part(o, slice(None), slice(first, last))


def test_a_read_waits_for_the_write_and_a_write_for_both():
    a, b, c = (tile(128, 64) for _ in range(3))
    assert waits(copy(a, c), copy(b, a)) == [{}, {0: "read"}]
    assert waits(copy(b, a), copy(a, c)) == [{}, {0: "order"}]
    assert waits(copy(a, b), copy(a, c)) == [{}, {0: "order"}]
    assert waits(copy(a, c), copy(b, c)) == [{}, {}], "two reads"
    assert waits(copy(a, c), copy(b, a), copy(a, c)) == [{}, {0: "read"}, {0: "order", 1: "order"}]


def test_a_write_that_covers_others_stands_for_them():
    a, b, c = (tile(128, 64) for _ in range(3))
    halves = columns(a, 0, 32), columns(a, 32, 64)
    stream = [copy(halves[0], columns(c, 0, 32)), copy(halves[1], columns(c, 32, 64)), copy(b, a)]
    assert waits(*stream)[2] == {0: "read", 1: "read"}
    assert waits(*stream, copy(a, c), copy(b, a))[4] == {3: "read", 2: "order"}


def test_disjoint_columns_and_partitions_do_not_meet():
    a, b = tile(128, 64), tile(128, 64)
    assert waits(
        copy(columns(a, 0, 32), columns(b, 0, 32)), copy(columns(b, 0, 32), columns(a, 32, 64))
    )[1] == {0: "order"}
    upper, lower = part(a, slice(0, 64), slice(None)), part(a, slice(64, 128), slice(None))
    assert waits(
        copy(upper, part(b, slice(0, 64), slice(None))),
        copy(part(b, slice(64, 128), slice(None)), lower),
    ) == [{}, {}]


def test_column_blocks_of_a_matrix_in_hbm_do_not_meet():
    out, t = tile(64, 4096, region="shared_hbm"), tile(64, 512)
    stores = [copy(columns(out, i, i + 512), t) for i in range(0, 4096, 512)]
    assert all(found == {} for found in waits(*stores))
    again = copy(t, columns(out, 512, 513)._replace(shape=(64, 1)))
    assert waits(*stores, again)[-1][1] == "read"
    assert set(waits(*stores, again)[-1].values()) == {"read", "order"}


def test_a_runtime_offset_may_be_anywhere():
    table, t = tile(64, 16, region="shared_hbm"), tile(64, 16)
    first, last = part(table, slice(0, 1), slice(None)), part(table, slice(63, 64), slice(None))
    row = part(t, slice(0, 1), slice(None))
    anywhere = first._replace(indirect=True)
    assert waits(copy(last, row), copy(tile(1, 16), first))[1] == {}
    assert waits(copy(last, row), copy(tile(1, 16), anywhere))[1] == {0: "read"}


def test_accumulating_products_follow_each_other_and_a_reader_waits():
    sums, w, x = tile(128, 512, region="psum"), tile(128, 128), tile(128, 512)
    stream = [product(sums, w, x), product(sums, w, x), copy(tile(128, 512), sums)]
    assert waits(*stream) == [{}, {0: "order"}, {1: "read"}]


def test_told_dependencies_count():
    one, two = copy(tile(8, 8), tile(8, 8)), copy(tile(8, 8), tile(8, 8))
    two.after = [0]
    assert waits(one, two) == [{}, {0: "read"}]


def test_fresh_tiles_do_not_wait_until_the_memory_is_full():
    source = tile(128, 13 * 1024, region="private_hbm")  # 52 KiB per partition: four fit
    loads = [copy(tile(128, 13 * 1024), source) for _ in range(6)]
    assert waits(*loads) == [{}, {}, {}, {}, {0: "room"}, {1: "room"}]


def test_a_tile_takes_the_room_of_its_last_reader():
    source, result = tile(128, 26 * 1024, region="private_hbm"), tile(128, 1)
    stream = []
    for _ in range(3):  # 104 KiB each: two fit beside a column
        t = tile(128, 26 * 1024 - 16)
        stream += [
            copy(t, columns(source, 16, 26 * 1024)),
            instruction("tensor_reduce", "vector", result, t, op="add"),
        ]
    found = waits(*stream)
    assert found[4] == {1: "room", 0: "room"}, "the first tile's load and its reader"
    assert found[2] == {}


def test_a_small_tile_takes_a_quadrant():
    loads = [copy(tile(32, 26 * 1024), tile(32, 26 * 1024, region="private_hbm")) for _ in range(9)]
    assert [set(w.values()) for w in waits(*loads)] == [set()] * 8 + [{"room"}]


def test_psum_rotates_through_eight_banks():
    w, x = tile(128, 128), tile(128, 512)
    stream = []
    for _ in range(9):
        sums = tile(128, 512, region="psum")
        stream += [product(sums, w, x), copy(tile(128, 512), sums)]
    assert "room" not in {why for found in waits(*stream)[:16] for why in found.values()}
    assert waits(*stream)[16] == {0: "room", 1: "room"}


def test_tiles_of_a_dynamic_loop_are_the_same_memory_in_every_trip():
    state, source = tile(128, 64), tile(128, 64, region="private_hbm")
    stream = []
    for trip in range(3):
        t = tile(128, 64)
        load = copy(t, source)
        add = instruction("tensor_tensor", "vector", state, state, t, op="add")
        load.loops = add.loops = ((0, trip),)
        stream += [load, add]
    found = waits(*stream)
    assert found[2] == {0: "order", 1: "order"}, "the load waits for the first trip"
    assert found[3] == {1: "read", 2: "read"}
    for one in stream:
        one.loops = ()
    assert waits(*stream)[2] == {}, "unrolled: fresh tiles"


def test_tiles_from_before_the_loop_are_not_of_the_loop():
    before, source = tile(128, 64), tile(128, 64, region="private_hbm")
    stream = [copy(before, source)]
    for trip in range(2):
        t = tile(128, 64)
        add = instruction("tensor_tensor", "vector", t, before, before, op="add")
        add.loops = ((0, trip),)
        stream.append(add)
    assert waits(*stream)[1:] == [{0: "read"}, {0: "read", 1: "order"}]


def test_a_barrier_orders_its_tensor():
    shared, t = tile(64, 64, region="shared_hbm"), tile(64, 64)
    meet = instruction("core_barrier", "gpsimd", (), shared)
    found = waits(copy(shared, t), meet, copy(tile(64, 64), shared))
    assert found == [{}, {0: "order"}, {1: "read"}]


def test_cores_are_numbered_one_after_the_other():
    a, b = tile(8, 8), tile(8, 8)
    core = [copy(a, b), copy(b, a)]
    other = [copy(tile(8, 8, serial=a.storage), b), copy(b, tile(8, 8, serial=a.storage))]
    found = dependencies(launch(core, other))
    assert [[e.before for e in w] for w in found] == [[], [0], [], [2]]


@st.composite
def views(draw):
    """Two views of one [6, 12] uint8 matrix in HBM, by slices and transposes."""
    whole = tile(6, 12, dtype="uint8", region="private_hbm", serial=1)
    found = []
    for _ in range(2):
        r, c = draw(st.integers(0, 5)), draw(st.integers(0, 11))
        rows = slice(r, draw(st.integers(r + 1, 6)), draw(st.integers(1, 3)))
        cut = slice(c, draw(st.integers(c + 1, 12)), draw(st.integers(1, 3)))
        view = part(whole, rows, cut)
        if draw(st.booleans()):
            view = view._replace(shape=view.shape[::-1], strides=view.strides[::-1])
        found.append(view)
    return found


def touched(o):
    grid = np.indices(o.shape).reshape(len(o.shape), -1)
    return set((o.offset + np.array(o.strides) @ grid).tolist())


@settings(max_examples=400, deadline=None)
@given(views())
def test_regions_never_miss_a_shared_byte(two):
    a, b = two
    if touched(a) & touched(b):
        assert overlap(region(a), region(b))
    if covers(region(a), region(b)) and len(touched(a)) == region(a).high - region(a).low:
        assert touched(b) <= touched(a), "a dense region that covers really covers"
    for o in two:
        assert region(o).low == min(touched(o)) and region(o).high == max(touched(o)) + 1


def test_regions_by_hand():
    matrix = tile(64, 100, region="private_hbm")
    block = region(part(matrix, slice(8, 16), slice(10, 20)))
    assert block[:5] == (400, 8, 16, 40, 80)
    assert region(tile(7, region="private_hbm"))[:5] == (LINEAR, 0, 1, 0, 28)
    chip = region(part(tile(128, 64), slice(32, 64), slice(16, 32)))
    assert chip[:5] == (256, 32, 64, 64, 128)


@pytest.mark.parametrize(
    ("cut", "expected"),
    [
        ((slice(None), slice(None)), 400),
        ((slice(None), slice(0, 50)), 200),
        ((slice(None), slice(0, 100, 2)), 4),
    ],
)
def test_runs_on_chip_end_with_the_partition(cut, expected):
    assert run(part(tile(64, 100), *cut)) == expected
    assert run(tile(64, 100, region="private_hbm")) == 64 * 400
    assert partitions(part(tile(128, 8), slice(32, 96), slice(None))) == (32, 96)
