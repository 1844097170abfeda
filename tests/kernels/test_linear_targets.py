"""Modelled times of the quantised products at the sizes that were published for another engine."""

from __future__ import annotations

import pytest
import torch

from dslearn.formats.place import place_fp8
from dslearn.formats.place_fp4 import place_fp4, place_widened
from dslearn.kernels.fp4_linear import fp4_linear
from dslearn.kernels.fp4_widened import fp4_widened
from dslearn.kernels.fp8_folded import fp8_folded
from dslearn.sim import cost
from tests.support import linear

# Kernel without launch, two cores, µs: published less a launch of 120 µs, and what is asked here.
PUBLISHED_FP8, PUBLISHED_FP4 = 1050, 280


def microseconds(kernel, *arguments):
    return cost.profile(kernel[2], *arguments).us


def test_fp8_of_one_row():
    codes, scale = linear.fp8(36864, 1280, 32, whole=False)
    us = microseconds(fp8_folded, linear.rows(1, 1280), *place_fp8(codes, scale), 36864)
    assert 65 < us < 100 < PUBLISHED_FP8 / 10, "not below what the bytes take from HBM"


@pytest.mark.parametrize(
    ("kernel", "place", "floor", "limit"),
    [(fp4_widened, place_widened, 33, 60), (fp4_linear, place_fp4, 17, 130)],
)
def test_fp4_of_64_rows(kernel, place, floor, limit):
    placed = place(*linear.fp4(4608, 5120, 7))
    us = microseconds(kernel, linear.rows(64, 5120), *placed, 4608)
    assert floor < us < limit < PUBLISHED_FP4 / 2


def test_folding_pays_for_few_rows_and_decoding_for_many():
    from dslearn.kernels.fp8_linear import fp8_linear

    placed = place_fp8(*linear.fp8(4096, 1280, 32, whole=False))
    times = {
        m: [microseconds(k, linear.rows(m, 1280), *placed, 4096) for k in (fp8_folded, fp8_linear)]
        for m in (1, 64)
    }
    assert times[1][0] < times[1][1] and times[64][0] > times[64][1]
    assert torch.cat([p.flatten() for p in placed]).any()
