"""Unrolled and dynamic loops: what they compute, record, and refuse."""

from __future__ import annotations

import numpy as np
import pytest

from dslearn.sim import modules, recording
from tests.support.sim import expect_refusal, filled, values

NKI = modules.build()
nki, nl, nisa = NKI["nki"], NKI["nki.language"], NKI["nki.isa"]
X = np.arange(32, dtype=np.float32).reshape(8, 4)


def register(value: int):
    return nisa.register_alloc(value)


def total() -> object:
    return nl.zeros((1, 1), nl.float32)


@pytest.mark.parametrize("name", ["affine_range", "sequential_range", "static_range"])
def test_old_ranges_are_range(name):
    made = getattr(nl, name)
    assert (made(3), made(1, 4), made(0, 9, 4)) == (range(3), range(1, 4), range(0, 9, 4))
    with expect_refusal("register", kind=TypeError):
        made(register(3))


@pytest.mark.parametrize("lower, upper, step", [(0, 5, 1), (2, 9, 3), (4, 4, 1), (5, 2, 1)])
@pytest.mark.parametrize("where", ["int", "register"])
def test_fori_loop_counts_as_range(lower, upper, step, where):
    seen = []
    bounds = (lower, upper) if where == "int" else (register(lower), register(upper))
    nl.fori_loop(*bounds, lambda i: seen.append(i.read()), step=step)
    assert seen == list(range(lower, upper, step))


def rows_reversed(x, count):
    """out[i] = x[last - i] by a runtime index, with integer arithmetic in a (1, 1) tile."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    position = nl.zeros((1, 1), nl.int32)
    number = nisa.register_alloc()
    nisa.register_load(number, count)

    def body(i):
        row = nl.ndarray((1, x.shape[1]), x.dtype)
        nisa.register_store(position, i)
        nisa.tensor_scalar(position, position, nl.multiply, -1, op1=nl.add, operand1=x.shape[0] - 1)
        nisa.dma_copy(row, x.ap([[4, 1], [1, 4]], scalar_offset=position))
        nisa.dma_copy(out.ap([[4, 1], [1, 4]], scalar_offset=i), row)

    nl.fori_loop(0, number, body)
    return out


def test_a_dynamic_loop_addresses_by_its_index_and_is_recorded():
    @nki.jit
    def kernel(x, n):
        return rows_reversed(x, nl.load(n))

    with recording() as launches:
        assert np.array_equal(kernel(X, np.array([[8]], np.int32)), X[::-1])
    inside = [i for i in launches[0].cores[0] if i.loops]
    assert [i.loops for i in inside[::4]] == [((0, trip),) for trip in range(8)]
    assert len(inside) == 8 * 4


def test_a_runtime_if_is_a_loop_of_zero_or_one_trips():
    @nki.jit
    def kernel(x, flag):
        tile, condition = nl.load(x), nisa.register_alloc()
        nisa.register_load(condition, nl.load(flag))
        nl.fori_loop(0, condition, lambda _: nisa.memset(tile, 0.0) and None)
        nl.store(x, tile)
        return x

    assert kernel(X.copy(), np.array([[0]], np.int32)).any()
    assert not kernel(X.copy(), np.array([[1]], np.int32)).any()


@pytest.mark.parametrize("start", [0, 1, 4])
def test_while_loop_is_the_published_example(start):
    acc, val = total(), filled(np.full((1, 1), 2.5, np.float32))
    count, one = filled(np.full((1, 1), start, np.int32)), filled(np.ones((1, 1), np.int32))
    reg = nisa.register_alloc()
    nisa.register_load(reg, count)

    def body(r):
        nisa.tensor_tensor(dst=acc, data1=acc, data2=val, op=nl.add)
        nisa.tensor_tensor(dst=count, data1=count, data2=one, op=nl.subtract)
        nisa.register_load(r, count)
        return r

    nl.while_loop(reg, body)
    assert values(acc)[0, 0] == 2.5 * start and values(count)[0, 0] == 0


def test_dynamic_range_is_the_old_spelling():
    seen = []
    for i in nl.dynamic_range(register(3)):
        seen.append(i.read())
        nisa.memset(total(), 1.0)
    assert seen == [0, 1, 2]
    assert [i.read() for i in nl.dynamic_range(2, register(7), 2)] == [2, 4, 6]


def test_nested_loops_carry_both_trips():
    @nki.jit
    def kernel(x):
        acc = total()

        def outer(_):
            nl.fori_loop(0, 2, lambda _: nisa.memset(acc, 1.0) and None)

        nl.fori_loop(0, 2, outer)
        return x

    with recording() as launches:
        kernel(X)
    trips = [[t for _, t in i.loops] for i in launches[0].cores[0] if len(i.loops) == 2]
    assert trips == [[0, 0], [0, 1], [1, 0], [1, 1]]


def test_the_index_is_read_only_and_has_no_value():
    def write(i):
        nisa.register_move(i, 3)

    with expect_refusal("register", "index register"):
        nl.fori_loop(0, 1, write)
    for use in (lambda i: i + 1, lambda i: [1, 2][i], lambda i: range(i), lambda i: bool(i)):
        with expect_refusal("register", kind=TypeError):
            nl.fori_loop(0, 1, use)


def test_tiles_of_a_trip_end_with_it_and_outer_tiles_stay():
    kept, outer = [], total()

    def body(_):
        tile = nl.full((1, 1), 3.0, nl.float32)
        nisa.tensor_tensor(outer, outer, tile, op=nl.add)
        kept.append(tile)

    nl.fori_loop(0, 2, body)
    assert values(outer)[0, 0] == 6.0
    with expect_refusal("loop", "before the loop"):
        nisa.tensor_copy(outer, kept[0])
    with expect_refusal("loop", "before the loop"):
        nisa.memset(kept[1], 0.0)


def test_results_are_allocated_before_the_loop():
    @nki.jit
    def kernel(x, outside):
        made = [nl.ndarray((8, 4), nl.float32, buffer=nl.shared_hbm)] if outside else []

        def body(_):
            if not outside:
                made.append(nl.ndarray((8, 4), nl.float32, buffer=nl.shared_hbm))
            nisa.dma_copy(made[0], x)

        nl.fori_loop(0, 1, body)
        return made[0]

    assert np.array_equal(kernel(X, outside=True), X)
    with expect_refusal("loop", "allocate results before the loop"):
        kernel(X, outside=False)


def test_a_tile_of_one_trip_is_not_there_in_the_next():
    carried = []

    def body(_):
        if carried:
            nisa.memset(carried[0], 0.0)
        carried.append(nl.full((1, 1), 3.0, nl.float32))

    with expect_refusal("loop"):
        nl.fori_loop(0, 2, body)


def test_a_body_that_changes_between_trips_is_refused():
    tile, state = nl.zeros((4, 8), nl.float32), [0]

    def moving(_):
        nisa.memset(tile[:, state[0] : state[0] + 1], 1.0)
        state[0] += 1

    with expect_refusal("loop", "trip 1 differs from trip 0 at its instruction 0 (memset)"):
        nl.fori_loop(0, 3, moving)

    def growing(_):
        for _ in range(state[0]):
            nisa.memset(tile, 1.0)
        state[0] += 1

    with expect_refusal("loop", "the body is compiled once"):
        nl.fori_loop(0, 3, growing)
    nl.fori_loop(0, 3, lambda _: nisa.memset(tile[:, 0:1], 1.0) and None)


@pytest.mark.parametrize(
    "call, rule",
    [
        (lambda: nl.fori_loop(0, 2, lambda i: i), "loop"),
        (lambda: nl.fori_loop(0, 2, lambda i: None, step=0), "loop"),
        (lambda: nl.fori_loop(0, 2, lambda i: None, step=register(1)), "loop"),
        (lambda: nl.fori_loop(0, 2.5, lambda i: None), "arguments"),
        (lambda: nl.while_loop(3, lambda r: r), "arguments"),
        (lambda: nl.while_loop(register(1), lambda r: None), "loop"),
        (lambda: nl.while_loop(nisa.register_alloc(), lambda r: r), "register"),
    ],
)
def test_loops_that_the_device_does_not_have(call, rule):
    with expect_refusal(rule):
        call()


def test_dynamic_loops_are_not_allowed_where_order_is_fixed():
    with nl.no_reorder():
        assert list(nl.static_range(2)) == [0, 1]
        for call in (
            lambda: nl.fori_loop(0, 1, lambda i: None),
            lambda: nl.while_loop(register(0), lambda r: r),
            lambda: nl.dynamic_range(1),
        ):
            with expect_refusal("loop", "no_reorder"):
                call()
    nl.fori_loop(0, 1, lambda i: None)


def test_a_loop_body_may_use_what_its_trips_free():
    """Ten trips of a tile that fills SBUF: only one is alive at a time."""

    def body(_):
        nisa.memset(nl.ndarray((128, 50_000), nl.float32), 0.0)

    nl.fori_loop(0, 10, body)
    assert nl.ndarray((128, 50_000), nl.float32).on_chip
