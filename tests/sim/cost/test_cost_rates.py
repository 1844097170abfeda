"""rates.yaml: complete, sourced, numbers; what is wrong with it is said."""

from __future__ import annotations

import pytest
import yaml

from dslearn.errors import UsageError
from dslearn.sim.cost.rates import PATH, SOURCES, described, load, names, parse

TEXT = PATH.read_text(encoding="utf-8")


def changed(change):
    """rates.yaml with one thing changed."""
    table = yaml.safe_load(TEXT)
    change(table)
    return yaml.safe_dump(table)


def test_every_constant_has_a_value_a_unit_and_a_source():
    for name, entry in described().items():
        assert entry["value"] > 0 and entry["unit"], name
        assert entry["source"] in SOURCES, name
        if entry["source"] in ("fitted here", "unverified"):
            assert entry.get("note"), f"{name}: say what it rests on"
    assert set(described()) == set(names()) and len(names()) > 25


def test_few_constants_are_fitted():
    fitted = {n for n, e in described().items() if e["source"] == "fitted here"}
    assert fitted == {"dma_chunk_bytes", "launch_us"}


def test_the_documented_peaks_follow():
    rates = load()
    tflops = 2 * 128 * 128 * rates.pe_ghz / 1e3
    assert tflops == pytest.approx(78.6, abs=0.1), "bf16 of one core"
    assert 2 * tflops == pytest.approx(157, abs=0.5), "fp8, two rows per cycle"
    assert tflops / rates.pe_fp32_factor == pytest.approx(20, abs=0.5)
    assert rates.dma_engines * rates.dma_practical_gbs == 368
    assert rates.dma_engines * rates.dma_peak_gbs == pytest.approx(435, abs=1)
    assert rates.hbm_stack_gbs * 4 == 2900


def test_one_constant_scaled():
    rates = load()
    assert rates.scaled("vector_ghz", 1.25).vector_ghz == pytest.approx(1.2)
    assert rates.scaled("vector_ghz", 1.25).scalar_ghz == rates.scalar_ghz
    doubled = rates.scaled("cycles.reciprocal", 2)
    assert doubled.cycles["reciprocal"].each == 16 and rates.cycles["reciprocal"].each == 8
    for unknown in ("vector", "cycles.nothing", "cycles"):
        with pytest.raises(UsageError, match="no rate"):
            rates.scaled(unknown, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t["constants"].pop("pe_ghz"), "missing or unknown constants.*pe_ghz"),
        (lambda t: t["constants"].update(x={"value": 1}), "missing or unknown constants.*x"),
        (lambda t: t["constants"]["pe_ghz"].update(source="a friend"), "pe_ghz: source must be"),
        (lambda t: t["cycles"]["iota"].pop("source"), "iota: source must be"),
        (lambda t: t["constants"]["pe_ghz"].update(value="fast"), "a number as value"),
        (lambda t: t["constants"]["pe_ghz"].pop("value"), "a number as value"),
        (lambda t: t["constants"]["pe_ghz"].update(value=0), "pe_ghz: must be positive"),
        (lambda t: t["constants"]["dma_engines"].update(value=1.5), "must be a whole number"),
    ],
)
def test_what_is_wrong_is_said(change, message):
    assert parse(changed(lambda t: None)) == load()
    with pytest.raises(UsageError, match=message):
        parse(changed(change))
