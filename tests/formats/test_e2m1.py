"""e2m1: the 16 values, ties, saturation, the sign of zero, nibble order."""

import ml_dtypes
import numpy as np
import pytest
import torch
from gfloat import RoundMode, round_float
from gfloat.formats import format_info_ocp_e2m1
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn.errors import FormatError
from dslearn.formats import e2m1

CODES = torch.arange(16).to(torch.uint8)
FINITE_FP32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


def numpy_codes(x):
    return torch.from_numpy(x.numpy().astype(ml_dtypes.float4_e2m1fn).view(np.uint8) & 15)


def test_decode_equals_ml_dtypes_for_all_codes():
    got = e2m1.decode(CODES).numpy()
    assert np.array_equal(got, CODES.numpy().view(ml_dtypes.float4_e2m1fn).astype(np.float32))
    assert np.signbit(got).tolist() == [False] * 8 + [True] * 8


def test_encode_inverts_decode():
    assert torch.equal(e2m1.encode(e2m1.decode(CODES)), CODES)


def test_ties_go_to_the_even_code():
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    assert e2m1.encode(ties).tolist() == [0, 2, 2, 4, 4, 6, 6]
    for direction in (0.0, 100.0):
        near = torch.nextafter(ties, torch.tensor(direction))
        assert torch.equal(e2m1.encode(near), numpy_codes(near))
    below = e2m1.encode(torch.nextafter(ties, torch.tensor(0.0)))
    assert below.tolist() == [0, 1, 2, 3, 4, 5, 6]


@settings(max_examples=200, deadline=None)
@given(st.lists(FINITE_FP32 | st.floats(-8, 8, width=32), min_size=1, max_size=40))
def test_encode_equals_two_other_implementations(numbers):
    x = torch.tensor(numbers, dtype=torch.float32)
    codes = e2m1.encode(x)
    assert torch.equal(codes, numpy_codes(x.clamp(-6, 6)))
    third = [round_float(format_info_ocp_e2m1, n, RoundMode.TiesToEven, sat=True) for n in numbers]
    assert e2m1.decode(codes).tolist() == third


def test_special_values():
    x = torch.tensor([0.0, -0.0, 1e-45, -1e-45, 1e-38, 7.0, -1e9, 3.4e38])
    assert e2m1.encode(x).tolist() == [0, 8, 0, 8, 0, 7, 15, 7]
    assert torch.equal(e2m1.encode(x.bfloat16()[:5]), e2m1.encode(x[:5]))
    for bad in (torch.nan, torch.inf, -torch.inf):
        with pytest.raises(FormatError, match="no code"):
            e2m1.encode(torch.tensor([1.0, bad]))


def test_low_nibble_is_the_even_column():
    packed = e2m1.pack(CODES)
    assert packed.tolist() == [0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]
    assert torch.equal(e2m1.unpack(packed), CODES)
    assert torch.equal(e2m1.unpack(packed.view(torch.int8)), CODES), "checkpoints store int8"


@pytest.mark.parametrize("shape", [(0, 8), (3, 0), (2, 3, 6), (1, 2)])
def test_pack_round_trip_of_odd_shapes(shape):
    codes = (torch.arange(int(np.prod(shape))) % 16).to(torch.uint8).view(shape)
    packed = e2m1.pack(codes)
    assert packed.shape == (*shape[:-1], shape[-1] // 2)
    assert torch.equal(e2m1.unpack(packed), codes)


def test_packed_pairs_table_decodes_every_byte():
    every = torch.arange(256).to(torch.uint8)
    values = e2m1.pairs(torch.device("cpu")).view(torch.float32).view(256, 2)
    assert torch.equal(values.view(-1), e2m1.decode(e2m1.unpack(every)))


def test_refusals():
    with pytest.raises(FormatError, match="must be even"):
        e2m1.pack(CODES[:5])
    with pytest.raises(FormatError, match="unpack packed bytes"):
        e2m1.decode(torch.tensor([16], dtype=torch.uint8))
    with pytest.raises(FormatError, match="bytes are needed"):
        e2m1.unpack(CODES.int())
    with pytest.raises(FormatError, match="float32 or bfloat16"):
        e2m1.encode(CODES)
