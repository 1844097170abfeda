"""Tables for 8-bit floats against torch's casts: all codes, all bf16 numbers, every step."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from dslearn.regions.codes import decoding, encoding
from tests.support.carriers import NARROW

each_kind = pytest.mark.parametrize("kind", NARROW, ids=str)


def encoded(x, kind):
    """Count bounds, look up: what a graph does."""
    bounds, codes = encoding(kind)
    row = torch.bucketize(x.abs(), bounds, right=True) + x.isnan().int()
    return codes[row + x.signbit().int() * (len(codes) // 2)]


def check_encoding(x, kind):
    assert torch.equal(encoded(x, kind), x.to(kind).view(torch.uint8))


@each_kind
def test_every_bf16_number_is_encoded_as_torch_does(kind):
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
    check_encoding(every.float(), kind)


@each_kind
def test_the_numbers_at_every_step_and_beside_it(kind):
    bounds = encoding(kind).bounds
    near = torch.cat([bounds, *(bounds.nextafter(torch.tensor(to)) for to in (0.0, torch.inf))])
    check_encoding(torch.cat([near, -near]), kind)
    assert 100 < len(bounds) < 256


@each_kind
def test_any_fp32_bits(kind):
    bits = torch.randint(
        -(1 << 31), 1 << 31, (200_000,), generator=torch.Generator().manual_seed(1)
    )
    check_encoding(bits.to(torch.int32).view(torch.float32), kind)


def test_values_are_those_of_ml_dtypes():
    # Another implementation of the same formats.
    pairs = [
        (torch.float8_e4m3fn, ml_dtypes.float8_e4m3fn),
        (torch.float8_e4m3fnuz, ml_dtypes.float8_e4m3fnuz),
        (torch.float8_e8m0fnu, ml_dtypes.float8_e8m0fnu),
    ]
    for kind, theirs in pairs:
        expected = np.arange(256, dtype=np.uint8).view(theirs).astype(np.float32)
        np.testing.assert_array_equal(decoding(kind, torch.float32).numpy(), expected)
