"""The model against published times of somebody's kernels, full size, one set of constants."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import reference_kernels as reference
from dslearn.sim.cost import load
from dslearn.sim.cost.rates import described

pytestmark = pytest.mark.slow
RATES = load()
CYCLES = ("scalar_tensor_tensor", "tensor_copy", "tensor_scalar", "tensor_tensor", "topk")


@pytest.fixture(scope="module")
def found():
    return reference.runs()


def test_every_time_is_within_40_percent_and_every_ratio_within_10(found):
    assert len(found) == 4
    for run in found:
        error = run.total_ms(RATES) / run.published_ms - 1
        assert abs(error) <= 0.4, f"{run.kernel} on {run.cores}: {error:+.1%}"
    for one, two in zip(found[::2], found[1::2], strict=True):
        published = one.published_ms / two.published_ms
        ratio = one.total_ms(RATES) / two.total_ms(RATES)
        assert abs(ratio / published - 1) <= 0.1, f"{one.kernel}: {ratio:.3f} and {published:.3f}"


def test_another_order_of_the_same_instructions_waits_longer(found):
    for run in found[2:]:
        other = reference.interleaved(run)
        for mine, theirs in zip(run.recording.cores, other.recording.cores, strict=True):
            assert {id(i) for i in mine} == {id(i) for i in theirs} and mine != theirs
        assert 1.05 < other.total_ms(RATES) / run.total_ms(RATES) < 1.2


def test_the_launch_is_what_the_fp8_pair_says_and_the_fp4_pair_agrees(found):
    one, two, other, pair = (run.published_ms for run in found)
    assert RATES.launch_us == pytest.approx(1e3 * (2 * two - one))
    assert RATES.launch_us == pytest.approx(1e3 * (2 * pair - other), abs=1)


def test_the_passes_are_those_of_the_docstrings(found):
    fp8, _, fp4, _ = (reference.passes(run, RATES) for run in found)
    assert fp8["scalar_tensor_tensor"] == pytest.approx(2, rel=0.02)
    assert fp8["tensor_copy"] == pytest.approx(1.5, rel=0.12), "widening, PSUM, small copies"
    assert fp8["tensor_scalar"] == pytest.approx(1, rel=0.06)
    assert fp4["scalar_tensor_tensor"] == pytest.approx(2, rel=0.02)
    assert fp4["tensor_scalar"] + fp4["tensor_tensor"] == pytest.approx(1, rel=0.06)
    assert sum(fp8.values()) == pytest.approx(4.5, rel=0.06)
    assert sum(fp4.values()) == pytest.approx(3.5, rel=0.06)


def test_the_vector_clock_matters_and_unverified_constants_do_not(found):
    run = found[3]
    before = run.total_ms(RATES)
    unverified = [n for n, entry in described().items() if entry["source"] == "unverified"]
    assert len(unverified) >= 4
    for name in unverified:
        assert run.total_ms(RATES.scaled(name, 1.2)) == pytest.approx(before, rel=5e-3), name
    assert run.total_ms(RATES.scaled("vector_ghz", 0.8)) > 1.1 * before


def test_the_table_of_sensitivities(found, monkeypatch):
    monkeypatch.setattr(reference, "names", lambda: ("dma_engines", "barrier_us", "launch_us"))
    rates = replace(RATES, cycles={n: RATES.cycles[n] for n in CYCLES})
    rows = list(reference.sensitivity(found[3:], rates))
    assert rows[0] == ("constant", "naive_fp4 on 2")
    moving = ("scalar_tensor_tensor", "tensor_scalar", "tensor_tensor")
    assert [row[0] for row in rows[1:]] == ["launch_us", *(f"cycles.{name}" for name in moving)]
    assert rows[1][1] == "-4.7% / +4.7%", "a fifth of 120 of 513 us"


def test_the_page_shows_these_tables(found):
    page = fresh = reference.PAGE.read_text(encoding="utf-8")
    for name, rows in reference.tables(found, RATES).items():
        fresh = reference.replaced(fresh, name, rows)
    assert page == fresh, "docs/performance.md is out of date: reference_kernels.py --write"
    assert "<!-- sensitivity -->\n| constant " in page


def test_the_script_prints_its_tables(found, monkeypatch, capsys):
    monkeypatch.setattr(reference, "runs", lambda: found)
    monkeypatch.setattr("sys.argv", ["reference_kernels.py"])
    reference.main()
    text = capsys.readouterr().out
    assert "Modelled, not measured" in text and text.count("naive_fp4") >= 6 and "|---" in text
