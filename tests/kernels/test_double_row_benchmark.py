"""benchmarks/double_row.py: a product, what coarser scales change, the tables of the page."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from benchmarks import double_row as benchmark
from benchmarks.reference_kernels import PAGE


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_the_product_is_the_one_it_is_timed_for(groups):
    x, weight, row, output = benchmark.arguments(3, 256 * 6, 256, groups)
    got = benchmark.double_row[2](x, weight, row, output).astype(np.float64)

    def grouped(codes):
        return codes.view(ml_dtypes.float8_e4m3).astype(np.float64)

    moved = grouped(x).reshape(128, groups, -1, 3)
    held = grouped(weight).reshape(128, 2, groups, -1, 128)
    sums = np.einsum("pgim,ptgin->gtnm", moved, held)
    want = np.einsum("gtnm,gm,ntg->ntm", sums, row, output)
    assert np.allclose(got, want, rtol=2**-8)


def test_what_coarser_scales_change_is_counted():
    # Block maxima 240 and 30: the second block's scale is 8 times smaller. Its 2^-6 · 1.125 would
    # need bits below 2^-9 of the common scale's codes; its ones do not.
    x = torch.ones(1, 64)
    x[0, 0], x[0, 32], x[0, 63] = 240.0, 30.0, 2.0**-9 * 1.125
    weight = torch.ones(1, 64)
    moved, weights, outputs, error, itself = benchmark._changed(x, weight)
    assert (moved, weights, outputs) == (pytest.approx(1 / 64), 0, 0)
    assert 0 < error < 2**-12 / 300 and itself == 0


def test_exactness_costs_what_the_mode_saves():
    codes = np.arange(1, 0x78, dtype=np.uint8)
    exact = codes.view(ml_dtypes.float8_e4m3).astype(np.float32)
    high = (exact.view(np.uint32) & 0xFFE00000).view(np.float32)  # three bits, as e5m2 has
    for power in (-7, 0, 7):
        terms = [(part * 2.0**power).astype(ml_dtypes.float8_e5m2) for part in (high, exact - high)]
        assert np.array_equal(sum(t.astype(np.float32) for t in terms), exact * 2.0**power)


def test_only_the_inexact_way_is_faster(monkeypatch):
    monkeypatch.setattr(benchmark, "SHAPES", ((1280, 1024),))
    heading, *rows = benchmark.times()
    times = {int(row[0].split("x")[0]): [float(us) for us in row[1:]] for row in rows}
    assert list(times) == [64, 128, 256, 512] and len(heading) == 4
    for count, (decoded, partial, coarse) in times.items():
        assert coarse < decoded and (count < 128 or decoded < partial)


@pytest.mark.parametrize("name", ["double row times", "double row changes"])
def test_the_page_holds_the_tables(name):
    page = PAGE.read_text(encoding="utf-8")
    table = page.partition(f"<!-- {name} -->")[2].partition(f"<!-- end of {name} -->")[0]
    assert table.count("\n| ") >= 7
