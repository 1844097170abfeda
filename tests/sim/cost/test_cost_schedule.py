"""The time line: order within an engine, overlap between engines, DMA, HBM, two cores, heat."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn.sim.cost import load, profile_recording
from dslearn.sim.cost.schedule import schedule
from tests.support.cost import copy, launch, modelled, part, product, run, tile

RATES = load()
MIB = 1 << 20


def steps(*cores):
    return schedule(launch(*cores), RATES)


def activation(dst, src):
    return run("activation", "scalar", dst, src, op="exp")


def test_an_engine_works_in_order_and_engines_work_together():
    a, b, c, d = (tile(128, 960) for _ in range(4))
    vector, other, scalar = steps([copy(a, b), copy(c, b), activation(d, b)])
    assert (vector.start, vector.end) == (0, 1000)
    assert other.start == 1000 and other.cause == 0
    assert scalar.start == 0, "nothing that it needs is missing"


def test_dependent_adds_take_a_hundred_cycles():
    a = tile(128, 1)
    add = [run("tensor_scalar", "vector", a, a, op=("add",)) for _ in range(10)]
    found = steps(add)
    assert found[9].start == pytest.approx(9 * 100 / 0.96), "published by somebody with a trn2"
    free = steps([run("tensor_scalar", "vector", tile(128, 1), a, op=("add",)) for _ in range(10)])
    assert free[9].start == pytest.approx(9 * 64 / 0.96)


def double_buffered(tiles):
    """Sixteen blocks of 1 MiB loaded and reduced, through so many tiles."""
    source = tile(16 * 128, 2048, region="private_hbm")
    stream = []
    for i in range(16):
        t = tiles[i % len(tiles)]
        stream.append(copy(t, part(source, slice(128 * i, 128 * i + 128), slice(None))))
        stream.append(run("tensor_reduce", "vector", tile(128, 1), t, op="add"))
    return stream


def test_two_tiles_hide_the_loads_and_one_does_not():
    one = modelled(double_buffered([tile(128, 2048)]))
    two = modelled(double_buffered([tile(128, 2048), tile(128, 2048)]))
    many = modelled(double_buffered([tile(128, 2048) for _ in range(16)]))
    load_us, reduce_us = MIB / 368e3 + 2, 2048 / 960
    assert one.us == pytest.approx(16 * (load_us + reduce_us), rel=0.02)
    assert two.us < 0.6 * one.us
    assert many.us == pytest.approx(16 * MIB / 362.5e3 + 2 + reduce_us, rel=0.05), "HBM alone"
    assert many.bound.startswith("bound by") and many.us < two.us


def test_a_dma_takes_latency_once_when_pipelined():
    source = tile(16 * 128, 2048, region="private_hbm")
    blocks = [part(source, slice(128 * i, 128 * i + 128), slice(None)) for i in range(16)]
    found = steps([copy(tile(128, 2048), block) for block in blocks])
    assert found[0].finish == pytest.approx(MIB / 368 + 2000, rel=0.02)
    assert found[15].finish == pytest.approx(16 * MIB / 368 + 2000, rel=0.02)


def test_narrow_tiles_use_few_engines_at_a_time():
    narrow = [copy(tile(8, 8192), tile(8, 8192, region="private_hbm")) for _ in range(2)]
    first, second = steps(narrow)
    assert second.finish - first.finish == pytest.approx(8 * 32768 / 23, rel=0.02), "one engine"


def test_two_cores_share_the_bandwidth_of_their_stack():
    def core():
        source = tile(64 * 128, 2048, region="private_hbm")
        return [
            copy(tile(128, 2048), part(source, slice(128 * i, 128 * i + 128), slice(None)))
            for i in range(64)
        ]

    alone, both = modelled(core()), modelled(core(), core())
    assert alone.us - 2 == pytest.approx(64 * MIB / 368e3, rel=0.01), "16 engines"
    assert both.us - 2 == pytest.approx(128 * MIB / 725e3, rel=0.01), "the stack"
    assert both.hbm_share == pytest.approx(1, abs=0.03)


def test_a_core_waits_at_a_barrier_for_the_other():
    shared = tile(64, 64, region="shared_hbm")
    slow, quick = tile(128, 9600), tile(128, 96)
    meet = [run("core_barrier", "vector", (), shared) for _ in range(2)]
    found = steps(
        [copy(slow, tile(128, 9600)), meet[0], copy(tile(128, 8), tile(128, 8))],
        [copy(quick, tile(128, 96)), meet[1], copy(tile(128, 8), tile(128, 8))],
    )
    assert found[1].start == found[4].start == 10_000
    assert found[2].start == found[5].start == 10_000 + 1000 * RATES.barrier_us


def test_cores_exchange_when_both_are_ready():
    a, b = tile(128, 512), tile(128, 512)
    swap = [run("sendrecv", "dma", tile(128, 512), t, pipe=0, mover="dma") for t in (a, b)]
    found = steps([copy(a, tile(128, 512)), swap[0]], [swap[1]])
    assert found[1].start == found[2].start > 500


def test_a_runtime_gather_costs_gpsimd():
    rows = tile(128, 1024, region="private_hbm")._replace(indirect=True)
    gather = run("dma_copy", "dma", tile(128, 1024), rows, tile(128, 1, dtype="int32"), dge="swdge")
    p = modelled([gather, run("iota", "gpsimd", tile(128, 8))])
    assert p.busy_us["gpsimd"][0] == pytest.approx((128 * 10 + 158 / 1.2) / 1e3)


def test_a_dynamic_loop_pays_for_its_trips():
    t = tile(128, 64)
    trips = [copy(t, tile(128, 64)) for _ in range(4)]
    unrolled = modelled(trips).us
    for number, one in enumerate(trips):
        one.loops = ((0, number),)
    assert modelled(trips).us == pytest.approx(unrolled + 4 * RATES.loop_trip_us)


def test_the_tensor_engine_warms_up():
    w, x = tile(128, 128, dtype="bfloat16"), tile(128, 512, dtype="bfloat16")
    many = steps([product(tile(128, 512, region="psum"), w, x) for _ in range(100)])
    took = [s.end - s.start for s in many]
    assert took[0] == pytest.approx(2 * 213.3, abs=0.1) and took[-1] == pytest.approx(
        213.3, abs=0.1
    )
    cold = sum(t for t in took if t > 300)
    assert 3000 <= cold < 3500, "half speed for 3 us"


def test_nothing_takes_no_time():
    empty = modelled([])
    assert empty.us == 0 and empty.path == () and empty.bound.startswith("bound by nothing")


TILES = [tile(128, 64) for _ in range(4)]
HBM = tile(128, 256, region="private_hbm")


@st.composite
def streams(draw):
    """Random copies among four tiles, and loads, on three engines."""
    found = []
    for _ in range(draw(st.integers(1, 30))):
        dst, src = draw(st.sampled_from(TILES)), draw(st.sampled_from(TILES))
        kind = draw(st.sampled_from(["vector", "scalar", "load", "gpsimd"]))
        if kind == "load":
            at = draw(st.integers(0, 3)) * 64
            found.append(copy(dst, part(HBM, slice(None), slice(at, at + 64))))
        else:
            found.append(copy(dst, src, kind))
    return found


@settings(max_examples=100, deadline=None)
@given(streams())
def test_every_schedule_is_possible(stream):
    recording = launch(stream)
    p = profile_recording(recording, RATES)
    for engine in ("vector", "scalar", "gpsimd"):
        assert max(p.busy_us[engine]) <= p.us + 1e-9
        own = [s for s in p.steps if s.work.queue == engine]
        assert all(a.end <= b.start for a, b in zip(own, own[1:], strict=False))
    serial = sum(s.finish - s.start for s in p.steps) / 1e3
    assert p.us <= serial + 1e-9, "never worse than one after the other"
    assert sum(link.us for link in p.path) == pytest.approx(p.us), "the path is gapless"
    assert sum(link.count for link in p.path) <= len(stream)
    slower = profile_recording(recording, RATES.scaled("vector_ghz", 0.5))
    assert slower.busy_us["vector"][0] == pytest.approx(2 * p.busy_us["vector"][0])
