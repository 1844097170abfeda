"""ue8m0: values of all bytes, the exact ceiling, special values, refusals."""

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn.errors import FormatError
from dslearn.formats import ue8m0

BYTES = torch.arange(256).to(torch.uint8)


def exact_ceil(x: float) -> int:
    """Byte by exact rational comparison, no floating-point logarithm."""
    mantissa, exponent = np.frexp(np.float64(x))  # x = mantissa * 2^exponent, mantissa in [.5, 1)
    return int(np.clip(127 + exponent - (mantissa == 0.5), 1, 254))


def test_decode_equals_ml_dtypes_and_torch_for_all_bytes():
    got = ue8m0.decode(BYTES).numpy()
    want = BYTES.numpy().view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    assert np.array_equal(got, want, equal_nan=True)
    stored = BYTES.view(torch.float8_e8m0fnu)
    assert np.array_equal(ue8m0.decode(stored).numpy(), stored.float().numpy(), equal_nan=True)
    assert got[127] == 1 and got[0] == 2.0**-127 and got[254] == 2.0**127
    assert np.flatnonzero(np.isnan(got)).tolist() == [255]


@settings(max_examples=300, deadline=None)
@given(st.floats(min_value=0, width=32, allow_infinity=False, exclude_min=True))
def test_ceil_is_the_smallest_power_of_two_not_below(x):
    byte = ue8m0.ceil_byte(torch.tensor([x])).item()
    assert byte == exact_ceil(x)
    assert 2.0 ** (byte - 127) >= x or byte == 254
    assert byte == 1 or 2.0 ** (byte - 128) < x


def test_just_above_every_power_of_two():
    exponent = torch.arange(-126, 127)
    powers = torch.pow(2.0, exponent)
    above = torch.nextafter(powers, torch.tensor(torch.inf))
    assert torch.equal(ue8m0.ceil_byte(powers).int(), exponent.int() + 127)
    assert torch.equal(ue8m0.ceil_byte(above).int(), exponent.int() + 128)


def test_edges():
    x = torch.tensor([0.0, -0.0, 1e-45, 1e-38, 2.0**-126, 2.0**127, 3.4e38, torch.inf, torch.nan])
    assert ue8m0.ceil_byte(x).tolist() == [1, 1, 1, 1, 1, 254, 254, 255, 255]
    assert ue8m0.ceil_byte(torch.zeros(0, 2)).shape == (0, 2)


def test_published_packing_order_of_four_scales():
    packed = ue8m0.ceil_byte(torch.tensor([1.0, 2.0, 0.5, 4.0])).view(torch.int32)
    assert packed.item() & 0xFFFFFFFF == 0x817E807F


def test_exact_byte_inverts_decode_and_refuses_the_rest():
    assert torch.equal(ue8m0.exact_byte(ue8m0.decode(BYTES)), BYTES)
    for wrong in (1.5, 0.0, -1.0, torch.inf, 2.0**-128):
        with pytest.raises(FormatError, match="power of two"):
            ue8m0.exact_byte(torch.tensor([1.0, wrong]))


def test_refusals():
    with pytest.raises(FormatError, match=">= 0"):
        ue8m0.ceil_byte(torch.tensor([1.0, -2.0]))
    with pytest.raises(FormatError, match="float32"):
        ue8m0.ceil_byte(torch.ones(2, dtype=torch.bfloat16))
    for numbers in (BYTES.float(), BYTES.int(), BYTES.long()):
        with pytest.raises(FormatError, match="without conversion"):
            ue8m0.decode(numbers)
