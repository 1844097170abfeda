"""The NumPy form of the quantisers gives the bits of the torch form, special values included."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dslearn.errors import FormatError
from dslearn.formats import numpy_rows, rows
from dslearn.formats.records import Record

MAXIMA = pytest.mark.parametrize("fp8_max", [448, 240, 224])
SAFE = st.floats(-(2.0**99), 2.0**99, width=32)
SPECIAL = st.sampled_from([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, 2.0**-126, 448.0])
ROWS = hnp.arrays(np.float32, (3, 64), elements=SAFE | SPECIAL)
PLAIN = hnp.arrays(np.float32, (3, 64), elements=st.floats(-500, 500, width=32))


def bits(x):
    """Patterns with one NaN: which NaN an operation gives is the processor's choice."""
    x = np.asarray(x)
    return np.where(np.isnan(x), np.float32(np.nan), x).view(np.int32)


@MAXIMA
@settings(max_examples=80, deadline=None)
@given(x=ROWS | PLAIN)
def test_fake_fp8(fp8_max, x):
    with np.errstate(all="ignore"):
        got = numpy_rows.fake_fp8(x, 32, fp8_max)
    want = rows.fake_fp8(torch.from_numpy(x), 32, fp8_max)
    assert got.shape == x.shape and np.array_equal(bits(got), bits(want))


@settings(max_examples=80, deadline=None)
@given(x=ROWS | PLAIN)
def test_fake_fp4(x):
    with np.errstate(all="ignore"):
        got = numpy_rows.fake_fp4(x)
    assert np.array_equal(bits(got), bits(rows.fake_fp4(torch.from_numpy(x))))


@MAXIMA
@settings(max_examples=80, deadline=None)
@given(x=ROWS | PLAIN)
def test_window_record(fp8_max, x):
    record = Record("window", x.size, fp8_max=fp8_max)
    with np.errstate(all="ignore"):
        raw, values = numpy_rows.window_record(x.reshape(-1), fp8_max)
    want = record.pack(torch.from_numpy(x).reshape(-1))
    assert raw.dtype == np.uint8 and raw.tobytes() == want.numpy().tobytes()
    assert np.array_equal(bits(values), bits(record.unpack(want)))


def test_every_tie_and_other_blocks():
    steps = np.arange(-448 * 64, 448 * 64, dtype=np.float32) / 64
    ties = np.concatenate((steps, np.full(64, 448, np.float32)))
    for block in (16, 32, 64):
        x = ties[: len(ties) // block * block].reshape(-1, block)
        want = rows.fake_fp8(torch.from_numpy(x), block)
        assert np.array_equal(bits(numpy_rows.fake_fp8(x, block)), bits(want))


@pytest.mark.parametrize(
    "quantise", [numpy_rows.fake_fp8, numpy_rows.fake_fp4, numpy_rows.window_record]
)
def test_a_row_that_blocks_do_not_divide_is_refused(quantise):
    assert quantise(np.ones(64, np.float32)) is not None
    with pytest.raises(FormatError, match="row of 48 values cut in blocks of 32"):
        quantise(np.ones(48, np.float32))
