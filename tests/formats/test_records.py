"""Cache records: sizes from the table, bytes against definitions, round trips, refusals."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dslearn.errors import FormatError
from dslearn.formats import rows, tables
from dslearn.formats.records import Record
from tests.formats import formats_oracle as oracle

RELEASED = [
    ("window", 512, 528),
    ("compressed", 512, 288),
    ("index", 128, 68),
    ("index_fp8", 128, 132),
    ("v4", 512, 584),
]
KINDS = pytest.mark.parametrize("kind,dim", [r[:2] for r in RELEASED])
NUMBERS = st.floats(-1000, 1000, width=32)


def entries(*shape):
    rng = np.random.default_rng(sum(shape))
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 6, shape)
    return torch.from_numpy(x.astype(np.float32))


@pytest.mark.parametrize("kind,dim,stride", RELEASED)
def test_released_sizes(kind, dim, stride):
    record = Record(kind, dim)
    assert record.stride == record.data_width + record.scale_width == stride
    assert record.pack(entries(3, dim)).shape == (3, stride)


@pytest.mark.parametrize("dim", [32, 64, 96, 128, 320])
def test_other_sizes_follow_the_formulas(dim):
    assert Record("window", dim).stride == dim + dim // 32
    assert Record("compressed", dim).stride == dim // 2 + dim // 16
    assert Record("index", dim).stride == dim // 2 + dim // 32
    assert Record("index_fp8", dim).stride == dim + 4


def test_bytes_per_token_of_the_released_model():
    compressed, index = Record("compressed", 512).stride, Record("index", 128).stride
    assert 3 * (compressed + index) / 2 + (compressed + index) == 890
    assert {kind for kind, *_ in tables.RECORDS} == {kind for kind, *_ in RELEASED}


def test_window_bytes_are_codes_then_scales():
    x = entries(5, 512)
    codes, scale = oracle.quantize_fp8(x.numpy())
    raw = Record("window", 512).pack(x).numpy()
    assert np.array_equal(raw[:, :512], codes) and np.array_equal(raw[:, 512:], scale)


@pytest.mark.parametrize(
    "kind,dim,block,scale", [("compressed", 512, 16, "e4m3"), ("index", 128, 32, "ue8m0")]
)
def test_fp4_bytes_are_pairs_then_scales(kind, dim, block, scale):
    x = entries(5, dim)
    packed, byte = oracle.quantize_fp4(x.numpy(), block, scale)
    raw = Record(kind, dim).pack(x).numpy()
    assert np.array_equal(raw[:, : dim // 2], packed) and np.array_equal(raw[:, dim // 2 :], byte)


def test_index_fp8_ends_in_one_little_endian_float():
    x = entries(5, 128)
    codes, byte = oracle.quantize_fp8(x.numpy(), 128)
    raw = Record("index_fp8", 128).pack(x).numpy()
    assert np.array_equal(raw[:, :128], codes)
    assert np.array_equal(raw[:, 128:].copy().view("<f4"), 2.0 ** (byte.astype(np.float32) - 127))
    other = torch.from_numpy(raw.copy())
    other[:, 128:] = torch.full((5, 1), 0.3).view(torch.uint8)
    want = other[:, :128].view(torch.float8_e4m3fn).float() * 0.3
    assert torch.equal(Record("index_fp8", 128).unpack(other), want), "any fp32 scale is read"


def test_v4_bytes_are_fp8_then_bf16_then_seven_scales_and_a_pad():
    x = entries(5, 512)
    codes, byte = oracle.quantize_fp8(x[:, :448].numpy(), 64)
    raw = Record("v4", 512).pack(x)
    assert np.array_equal(raw[:, :448].numpy(), codes)
    assert torch.equal(raw[:, 448:576].contiguous().view(torch.bfloat16), x[:, 448:].bfloat16())
    assert np.array_equal(raw[:, 576:583].numpy(), byte) and raw[:, 583].tolist() == [0] * 5
    back = Record("v4", 512).unpack(raw)
    assert torch.equal(back[:, 448:], x[:, 448:].bfloat16().float()), (
        "rotary part bit-exact in bf16"
    )


@KINDS
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_unpack_gives_what_the_codec_gives(kind, dim, data):
    x = torch.from_numpy(data.draw(hnp.arrays(np.float32, (2, dim), elements=NUMBERS)))
    record = Record(kind, dim)
    back = record.unpack(record.pack(x))
    if kind == "compressed":
        want = rows.fake_fp4(x, 16, "e4m3")
    elif kind == "index":
        want = rows.fake_fp4(x)
    elif kind == "v4":
        want = torch.cat((rows.fake_fp8(x[:, :448], 64), x[:, 448:].bfloat16().float()), 1)
    else:
        want = rows.fake_fp8(x, 32 if kind == "window" else dim)
    assert torch.equal(back, want)


@KINDS
def test_storing_again_changes_no_value(kind, dim):
    record = Record(kind, dim)
    once = record.unpack(record.pack(entries(50, dim)))
    if kind != "compressed":  # its scale is rounded, so a block may settle one step further
        assert torch.equal(record.unpack(record.pack(once)), once)
    assert once.abs().max() > 0


@KINDS
@pytest.mark.parametrize("lead", [(), (0,), (1,), (2, 3), (4, 0)])
def test_any_leading_shape(kind, dim, lead):
    record = Record(kind, dim)
    x = entries(*lead, dim)
    raw = record.pack(x)
    assert raw.shape == (*lead, record.stride) and raw.dtype is torch.uint8
    assert record.unpack(raw).shape == (*lead, dim)
    if x.numel():
        assert torch.equal(record.pack(x.bfloat16()), record.pack(x.bfloat16().float()))


@KINDS
def test_rows_inside_a_larger_cache(kind, dim):
    record = Record(kind, dim)
    raw = record.pack(entries(6, dim))
    cache = torch.full((3, 6, record.stride + 9), 255, dtype=torch.uint8)
    cache[1, :, 4:-5] = raw
    assert torch.equal(record.unpack(cache[1, ::2, 4:-5]), record.unpack(raw[::2]))


@KINDS
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_nan_and_infinity_come_back_as_nan(kind, dim, bad):
    x = entries(2, dim)
    x[0, 3] = bad
    back = Record(kind, dim).unpack(Record(kind, dim).pack(x))
    assert back[0, 3].isnan() and back[1].isfinite().all()


@KINDS
def test_zero_entries(kind, dim):
    record = Record(kind, dim)
    assert record.unpack(record.pack(torch.zeros(2, dim))).abs().max() == 0
    negative = record.unpack(record.pack(-torch.zeros(2, dim)))
    assert torch.signbit(negative).all(), "the sign of zero is kept"


@pytest.mark.parametrize("kind,dim", [("window", 512), ("index_fp8", 128), ("v4", 512)])
@pytest.mark.parametrize("fp8_max,largest", [(448, 0x7E), (240, 0x77), (224, 0x76)])
def test_fp8_max_bounds_the_codes(kind, dim, fp8_max, largest):
    codes = Record(kind, dim, fp8_max).pack(entries(40, dim) * 1e3)[:, : min(dim, 448)] & 0x7F
    assert codes.max() <= largest and codes.max() > largest - 8


@pytest.mark.parametrize("fp8_max,largest", [(448, 0x7E), (240, 0x77), (224, 0x76)])
def test_fp8_max_bounds_the_scales_of_compressed_entries(fp8_max, largest):
    raw = Record("compressed", 64, fp8_max).pack(torch.full((1, 64), 1e4))
    assert raw[0, 32:].tolist() == [largest] * 4


def test_sizes_that_do_not_divide_are_refused_with_the_rule():
    for kind, dim, rule in [
        ("window", 500, "multiple of 32"),
        ("compressed", 40, "multiple of 16"),
        ("index", 48, "multiple of 32"),
        ("v4", 500, "436 must be a positive multiple of 64"),
        ("v4", 64, "positive multiple of 64"),
        ("window", 0, "positive multiple"),
    ]:
        with pytest.raises(FormatError, match=rule):
            Record(kind, dim)


def test_other_refusals():
    record = Record("window", 64)
    with pytest.raises(FormatError, match="'window', 'compressed'"):
        Record("page", 64)
    with pytest.raises(FormatError, match="448, 240, 224"):
        Record("window", 64, 300)
    with pytest.raises(FormatError, match="entries of 32"):
        record.pack(torch.zeros(2, 32))
    for wrong in (torch.zeros(2, 64, dtype=torch.uint8), torch.zeros(2, 66)):
        with pytest.raises(FormatError, match="uint8 rows of 66"):
            record.unpack(wrong)
