"""benchmarks/linear_kernels.py: its tables, and the page of documentation that holds them."""

from __future__ import annotations

import re

import pytest

from benchmarks import linear_kernels as benchmark
from benchmarks.reference_kernels import PAGE

NAMES = [*benchmark.FP8, *benchmark.FP4]


def test_the_ladder_climbs(monkeypatch):
    monkeypatch.setattr(
        benchmark,
        "LADDERS",
        ((benchmark.FP8, "1x512x2048"), (benchmark.FP4, "1x512x2048")),
    )
    heading, *rows = benchmark.ladder()
    assert [row[0] for row in rows] == NAMES and len(heading) == len(rows[0])
    times = [float(row[2]) for row in rows]
    assert times[0] > times[1] > times[2] and times[3] > times[4] > times[5], times
    assert [row[3] for row in rows] == ["1.4", "1.5", "1.5", "0.8", "0.8", "1.4"]  # bytes / 725e3


@pytest.mark.parametrize("name", ["linear kernels", "crossover", "expert kernels"])
def test_the_page_holds_every_table(name):
    page = PAGE.read_text(encoding="utf-8")
    table = re.search(rf"<!-- {name} -->\n(.*)\n<!-- end of {name} -->", page, re.S)
    assert table, f"docs/performance.md has no table {name!r}"
    rows = table[1].splitlines()
    assert len(rows) >= 9 and len({row.count("|") for row in rows}) == 1, f"{name}: {rows[:3]}"


def test_the_page_has_an_entry_for_every_kernel():
    page = PAGE.read_text(encoding="utf-8")
    entries = " ".join(re.findall(r"^### (.+)$", page, re.M))
    missing = [name for name in NAMES if not re.search(rf"\b{name}\b", entries)]
    assert not missing, f"docs/performance.md: no entry for {missing}"
