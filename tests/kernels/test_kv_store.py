"""kv_store against Record.pack and ml_dtypes: bytes, ties, specials, whole rows, padding, cores."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn import backend
from dslearn.formats.records import Record
from dslearn.kernels.kv_store import kv_store
from dslearn.ops import collect
from dslearn.ops.kv_store import kv_store as op
from dslearn.ops.kv_store import reference
from tests.support import records
from tests.support.kernels import matrix, recorded

KINDS = [("window", 64), ("compressed", 48), ("index", 32), ("window", 512), ("compressed", 512)]
each_kind = pytest.mark.parametrize(("kind", "dim"), KINDS, ids=str)


def stored(x, kind, fp8_max=448, slots=None, valid=None, rows=None, cores=1):  # noqa: PLR0913
    """The pool, all 7s before, after one launch."""
    count = len(x)
    slots = torch.arange(count) if slots is None else torch.tensor(slots)
    valid = torch.ones(count) if valid is None else torch.tensor(valid).float()
    pool = torch.full((rows or count, Record(kind, x.shape[1]).stride), 7, dtype=torch.uint8)
    kv_store[cores](
        x=x, slots=slots.int()[:, None], valid=valid[:, None], pool=pool, kind=kind, fp8_max=fp8_max
    )
    return pool


@each_kind
@pytest.mark.parametrize("fp8_max", [448, 240, 224])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_bytes_are_those_of_the_format(kind, dim, fp8_max, dtype):
    x = (matrix(1, 6, dim) * 2.0 ** torch.arange(-12, 12, 4)[:, None]).to(dtype)
    x[0, :16], x[1] = 0, 0
    pool = stored(x, kind, fp8_max)
    assert torch.equal(pool, Record(kind, dim, fp8_max).pack(x))


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.floats(width=32, min_value=-(2.0**99), max_value=2.0**99), min_size=32, max_size=32)
)
def test_any_finite_block(block):
    x = torch.tensor([block], dtype=torch.float32)
    x = torch.where(x.abs() < 2.0**-100, 0.0, x)  # subnormal quotients are the hardware's affair
    for kind in ("window", "compressed", "index"):
        assert torch.equal(stored(x, kind), Record(kind, 32).pack(x)), kind


@pytest.mark.parametrize("step", [-2, -1, 0, 1, 2])
def test_a_compressed_scale_is_rounded_at_the_exact_tie(step):
    """Six times a number halfway between two e4m3 scales, and its neighbours in fp32."""
    halfway = (torch.arange(8, 16) + 0.5) / 8 * torch.tensor([1.0, 2.0**-5])[:, None]
    largest = (6 * halfway.flatten()).view(torch.int32).add(step).view(torch.float32)
    x = torch.zeros(16, 16)
    x[:, 3] = largest
    assert torch.equal(stored(x, "compressed"), Record("compressed", 16).pack(x))


def test_compressed_codes_are_rounded_at_the_exact_tie():
    """Values halfway between codes times scales of four bits, and their neighbours in fp32."""
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0])
    rows = []
    for eighths in range(8, 16):
        tie = (ties * eighths / 8).view(torch.int32)
        rows.append(torch.cat([tie + 1, tie]).view(torch.float32))
        rows.append(-torch.cat([tie - 1, tie]).view(torch.float32))
        rows[-2][7] = rows[-1][7] = rows[-1][15]
    x = torch.stack(rows)
    assert torch.equal(stored(x, "compressed"), Record("compressed", 16).pack(x))


def test_window_codes_are_ml_dtypes_own():
    x = matrix(2, 4, 32)
    x[:, 0] = 448.0  # scale 1
    code = stored(x * 100, "window")[:, :32].numpy().view("float8_e4m3fn")
    scale = 2.0 ** np.ceil(np.log2(np.abs(x.numpy() * 100).max(1, keepdims=True) / 448))
    expected = (x.numpy() * 100 / scale).astype(code.dtype)
    assert np.array_equal(code.view(np.uint8), expected.view(np.uint8))
    assert np.abs(expected.astype(float)).max() > 240, "codes that trn2's own e4m3 does not have"


@pytest.mark.parametrize(("kind", "nan"), [("window", 255), ("compressed", 127), ("index", 255)])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_spoils_its_block_alone(kind, nan, bad):
    x = matrix(3, 3, 64)
    clean = stored(x, kind)
    x[1, 40] = bad
    pool, record = stored(x, kind), Record(kind, 64)
    assert torch.equal(pool[[0, 2]], clean[[0, 2]])
    block = 40 // (16 if kind == "compressed" else 32)
    assert pool[1, record.data_width + block] == nan
    read, twin = record.unpack(pool), record.unpack(record.pack(x))
    assert torch.equal(read.isnan(), twin.isnan()) and read.isnan().sum() in (16, 32)
    assert torch.equal(read[~read.isnan()], twin[~twin.isnan()])


def test_zeros_keep_their_sign():
    x = torch.zeros(1, 32)
    x[0, ::2] = -0.0
    for kind in ("window", "compressed", "index"):
        assert torch.equal(stored(x, kind), Record(kind, 32).pack(x)), kind


@pytest.mark.parametrize("cores", [1, 2])
def test_rows_go_where_the_slots_say_and_nowhere_else(cores):
    x = matrix(4, 5, 64)
    pool = stored(x, "window", slots=[9, 0, 11, 3, 6], rows=12, cores=cores)
    assert torch.equal(pool[[9, 0, 11, 3, 6]], Record("window", 64).pack(x))
    assert (pool[[1, 2, 4, 5, 7, 8, 10]] == 7).all()


@pytest.mark.parametrize("kind", ["window", "compressed", "index"])
def test_a_batch_padded_from_3_to_8_leaves_the_same_pool(kind):
    x = matrix(5, 8, 64)
    x[3:] = math.nan  # what padding rows hold
    real = stored(x[:3].clone(), kind, slots=[4, 0, 2], rows=10)
    real[9] = 0
    slots, valid = [4, 0, 2] + [9] * 5, [True] * 3 + [False] * 5
    for cores in (1, 2):
        padded = stored(x, kind, slots=slots, valid=valid, rows=10, cores=cores)
        assert torch.equal(padded, real)


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 128, 129])
def test_two_cores_give_the_bytes_of_one(rows):
    x = matrix(6, rows, 32)
    one, two = (stored(x, "index", cores=cores) for cores in (1, 2))
    assert torch.equal(one, two) and torch.equal(one, Record("index", 32).pack(x))


def test_all_rows_are_padding():
    x = matrix(7, 3, 32)
    pool = stored(x, "window", slots=[4, 4, 5], valid=[False] * 3, rows=6, cores=2)
    assert not pool[4:].any() and (pool[:4] == 7).all()


def test_records_are_stored_as_whole_rows():
    x = matrix(8, 6, 512)
    (core,) = recorded(lambda: stored(x, "window"))
    writes = [o for i in core for o in i.outputs if not o.region.on_chip]
    assert [w.shape for w in writes] == [(6, 528), (6, 528)], "the records, and padding's zeros"


def test_what_is_stored_reads_back():
    x = matrix(9, 4, 64)
    for kind, step in (("window", 2.0**-4), ("compressed", 0.25), ("index", 0.5)):
        back = records.values(stored(x, kind).numpy(), kind, 64)
        assert np.abs(back - x.numpy()).max() <= step * np.abs(x.numpy()).max(), kind


def test_the_operation_takes_the_kernel_on_sim():
    x, slots = matrix(10, 3, 64), torch.tensor([2, 4, 4])
    valid = torch.tensor([True, False, False])
    pools = [torch.zeros(5, 66, dtype=torch.uint8) for _ in range(2)]
    reference(x, slots, valid, pools[0], "window")
    with backend.use("sim"), collect() as taken:
        op(x, slots, valid, pools[1], "window")
    assert torch.equal(*pools) and pools[0].any()
    assert str(taken) == "kv_store: kernel 1"


@pytest.mark.parametrize("name", ["cpu", "sim"])
def test_no_rows_leave_the_pool_alone(name):
    pool = torch.full((3, 66), 7, dtype=torch.uint8)
    nothing = torch.zeros(0, 64), torch.zeros(0).int(), torch.zeros(0).bool()
    with backend.use(name):
        op(*nothing, pool, "window")
    assert (pool == 7).all()


def test_a_kind_or_a_pool_that_does_not_fit_is_refused():
    x, slots = matrix(11, 1, 64), torch.zeros(1, 1, dtype=torch.int32)
    valid, pool = torch.ones(1, 1), torch.zeros(2, 67, dtype=torch.uint8)
    with pytest.raises(AssertionError, match="window, compressed or index"):
        kv_store(x=x, slots=slots, valid=valid, pool=pool, kind="v4")
    with pytest.raises(AssertionError, match="as wide as a record"):
        kv_store(x=x, slots=slots, valid=valid, pool=pool, kind="window")
    pool = torch.zeros(2, 66, dtype=torch.uint8)
    kv_store(x=x, slots=slots, valid=valid, pool=pool, kind="window")
    assert torch.equal(pool[:1], Record("window", 64).pack(x))
