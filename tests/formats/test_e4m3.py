"""e4m3 in both readings: decode for all codes, encode with ties, limits and special values."""

import math

import ml_dtypes
import numpy as np
import pytest
import torch
from gfloat import RoundMode, round_float
from gfloat.formats import format_info_ocp_e4m3
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn.errors import FormatError
from dslearn.formats import e4m3

CODES = torch.arange(256).to(torch.uint8)
NUMPY = {"ocp": ml_dtypes.float8_e4m3fn, "ieee": ml_dtypes.float8_e4m3}
FINITE_FP32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


def numpy_codes(x, reading="ocp"):
    return torch.from_numpy(x.float().numpy().astype(NUMPY[reading]).view(np.uint8))


@pytest.mark.parametrize("reading", ["ocp", "ieee"])
def test_decode_equals_ml_dtypes_for_all_codes(reading):
    got = e4m3.decode(CODES, reading).numpy()
    want = CODES.numpy().view(NUMPY[reading]).astype(np.float32)
    assert np.array_equal(got, want, equal_nan=True)
    assert np.array_equal(np.signbit(got[[0, 128]]), [False, True]), "code 0x80 is -0"


def test_decode_equals_torch_for_all_codes():
    want = CODES.view(torch.float8_e4m3fn).float()
    assert torch.equal(e4m3.decode(CODES).nan_to_num(7e4), want.nan_to_num(7e4))
    stored = e4m3.decode(CODES.view(torch.float8_e4m3fn))
    assert torch.equal(stored.nan_to_num(), e4m3.decode(CODES).nan_to_num())


@pytest.mark.parametrize("reading", ["ocp", "ieee"])
def test_encode_inverts_decode(reading):
    values = e4m3.decode(CODES, reading)
    finite = values.isfinite()
    codes = e4m3.encode(values[finite], e4m3.LIMITS[reading], reading)
    assert torch.equal(codes, CODES[finite])


@pytest.mark.parametrize("reading", ["ocp", "ieee"])
def test_middles_go_to_the_even_code_and_their_neighbours_do_not(reading):
    values = e4m3.decode(CODES[:128], reading)
    values = values[values.isfinite()]
    middle = (values[1:] + values[:-1]) / 2
    top = e4m3.LIMITS[reading]
    even = e4m3.encode(middle, top, reading)
    assert bool((even % 2 == 0).all())
    above = torch.nextafter(middle, torch.tensor(torch.inf))
    below = torch.nextafter(middle, torch.tensor(0.0))
    for x in (middle, above, below, -middle, -above, -below):
        assert torch.equal(e4m3.encode(x, top, reading), numpy_codes(x, reading))
    assert e4m3.encode(torch.tensor([2.0**-10]))[0] == 0, "half the smallest step is a tie to 0"
    assert e4m3.encode(torch.nextafter(torch.tensor([2.0**-10]), torch.tensor(1.0)))[0] == 1


@settings(max_examples=200, deadline=None)
@given(st.lists(FINITE_FP32, min_size=1, max_size=40))
def test_encode_equals_clamp_then_ml_dtypes(numbers):
    x = torch.tensor(numbers, dtype=torch.float32)
    for fp8_max in (448, 240, 224):
        want = numpy_codes(x.clamp(-fp8_max, fp8_max))
        assert torch.equal(e4m3.encode(x, fp8_max), want)
    ieee = numpy_codes(x.clamp(-240, 240), "ieee")
    assert torch.equal(e4m3.encode(x, 240, "ieee"), ieee)


@settings(max_examples=100, deadline=None)
@given(FINITE_FP32)
def test_encode_equals_gfloat_saturating(number):
    want = round_float(format_info_ocp_e4m3, number, RoundMode.TiesToEven, sat=True)
    got = e4m3.decode(e4m3.encode(torch.tensor([number]))).item()
    assert got == want and math.copysign(1, got) == math.copysign(1, number)


def test_limits_of_the_range():
    x = torch.tensor([448.0, 464, 465, 1e9, 3.4e38, -465])
    assert e4m3.encode(x).tolist() == [0x7E] * 5 + [0xFE]
    assert e4m3.encode(x, 240).tolist() == [0x77] * 5 + [0xF7]
    assert e4m3.encode(x, 224).tolist() == [0x76] * 5 + [0xF6]
    assert e4m3.encode(torch.tensor([-0.0, 0.0, 2.0**-9, -(2.0**-9)])).tolist() == [128, 0, 1, 129]


@pytest.mark.parametrize("reading", ["ocp", "ieee"])
@pytest.mark.parametrize("saturate", [True, False])
def test_nan_never_becomes_a_number(reading, saturate):
    x = torch.tensor([torch.nan, -torch.nan, 1.0])
    values = e4m3.decode(e4m3.encode(x, e4m3.LIMITS[reading], reading, saturate), reading)
    assert values.isnan().tolist() == [True, True, False]


def test_infinity_is_nan_unless_the_format_has_it():
    x = torch.tensor([torch.inf, -torch.inf])
    assert e4m3.decode(e4m3.encode(x)).isnan().all(), "never a silent 448"
    assert e4m3.decode(e4m3.encode(x, 240, "ieee"), "ieee").isnan().all()
    assert torch.equal(e4m3.decode(e4m3.encode(x, 240, "ieee", False), "ieee"), x)
    assert e4m3.decode(e4m3.encode(x, saturate=False)).isnan().all()


@pytest.mark.parametrize("reading", ["ocp", "ieee"])
def test_without_saturation_overflow_is_the_formats_own(reading):
    x = torch.tensor(
        [239.0, 240, 247.99, 248, 249, 448, 464, 464.01, 465, 1e9, torch.inf, torch.nan]
    )
    x = torch.cat([x, -x])
    top = e4m3.LIMITS[reading]
    got = e4m3.decode(e4m3.encode(x, top, reading, saturate=False), reading)
    want = x.numpy().astype(NUMPY[reading]).astype(np.float32)
    assert np.array_equal(got.numpy(), want, equal_nan=True)


def test_bfloat16_and_empty_inputs():
    x = torch.tensor([1.0, -3.5, 300], dtype=torch.bfloat16)
    assert torch.equal(e4m3.encode(x), numpy_codes(x))
    assert e4m3.encode(torch.zeros(0, 3)).shape == (0, 3)
    assert e4m3.decode(CODES[:0].view(0, 1)).shape == (0, 1)


def test_refusals_say_what_is_allowed():
    x = torch.ones(2)
    with pytest.raises(FormatError, match="448, 240, 224"):
        e4m3.encode(x, 300)
    with pytest.raises(FormatError, match="must be 240, 224"):
        e4m3.encode(x, 448, "ieee")
    with pytest.raises(FormatError, match="'ocp' .*'ieee'"):
        e4m3.decode(CODES, "fnuz")
    with pytest.raises(FormatError, match="use fp8_max=448"):
        e4m3.encode(x, 224, saturate=False)
    with pytest.raises(FormatError, match="float32 or bfloat16"):
        e4m3.encode(x.double())
    with pytest.raises(FormatError, match="bytes are needed"):
        e4m3.decode(CODES.float())
