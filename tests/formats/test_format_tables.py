"""The integer tables, against independent implementations and against their own rules."""

import subprocess
import sys

import ml_dtypes
import numpy as np
from gfloat import decode_float
from gfloat.formats import format_info_ocp_e2m1, format_info_ocp_e4m3

from dslearn.formats import tables

CODES = np.arange(256, dtype=np.uint8)
OCP = CODES.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
IEEE = CODES.view(ml_dtypes.float8_e4m3).astype(np.float64)
NAN_CODES = [0x7F, 0xFF]


def test_e4m3_steps_are_the_values_of_two_other_implementations():
    steps = np.array(tables.E4M3_STEPS) * 2.0**tables.E4M3_STEP_LOG2
    third = np.array([decode_float(format_info_ocp_e4m3, int(c)).fval for c in CODES])
    finite = ~np.isnan(OCP)
    assert CODES[~finite].tolist() == NAN_CODES
    assert np.array_equal(steps[finite], OCP[finite])
    assert np.array_equal(steps[finite], third[finite])
    assert OCP[finite].max() == tables.E4M3_OCP_MAX
    assert OCP[OCP > 0].min() == 2.0**-9


def test_the_two_readings_share_242_codes():
    same = (OCP == IEEE) | (np.isnan(OCP) & np.isnan(IEEE))
    differing = [*range(0x78, 0x7F), *range(0xF8, 0xFF)]
    assert same.sum() == 242
    assert CODES[~same].tolist() == differing
    assert OCP[0x78:0x7F].tolist() == [256, 288, 320, 352, 384, 416, 448]
    assert np.isinf(IEEE).sum() == 2 and np.isnan(IEEE).sum() == 14
    assert IEEE[tables.E4M3_IEEE_LAST_FINITE] == tables.E4M3_IEEE_MAX


def test_halved_table_is_the_rounded_half_of_another_implementation():
    finite = ~np.isnan(OCP)
    want = (OCP[finite] / 2).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    halved = np.array(tables.E4M3_HALVED, np.uint8)
    assert np.array_equal(halved[finite], want)
    assert halved[NAN_CODES].tolist() == NAN_CODES


def test_eight_codes_per_sign_do_not_halve():
    halved = np.array(tables.E4M3_HALVED, np.uint8).view(ml_dtypes.float8_e4m3fn)
    back = halved.astype(np.float64) * 2
    wrong = ~np.isnan(OCP) & (back != OCP)
    positive = [0x01, 0x03, 0x05, 0x07, 0x09, 0x0B, 0x0D, 0x0F]
    assert CODES[wrong].tolist() == positive + [c + 0x80 for c in positive]
    assert CODES[wrong].tolist() == list(tables.E4M3_HALVED_INEXACT)
    published = [0, 0.0078125, 0.0078125, 0.015625, 0.015625, 0.0234375, 0.0234375, 0.03125]
    assert back[positive].tolist() == published
    assert np.abs(back - OCP)[wrong].tolist() == [2.0**-9] * 16
    assert np.nanmax(np.abs(back)) / 2 == tables.E4M3_DEVICE_MAX


def test_e2m1_halves_are_the_published_magnitudes():
    third = [decode_float(format_info_ocp_e2m1, c).fval for c in range(8)]
    assert [h / 2 for h in tables.E2M1_HALVES] == [0, 0.5, 1, 1.5, 2, 3, 4, 6] == third


def test_tables_import_nothing():
    code = (
        "import dslearn.formats.tables, sys; print('torch' in sys.modules, 'numpy' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "False"]
