"""What a profile says of a real kernel: bytes, shares, the word modelled; trace, picture, data."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from rich.console import Console

from dslearn.errors import UsageError
from dslearn.kernels.naive_fp8 import naive_fp8
from dslearn.kernels.rmsnorm import rmsnorm
from dslearn.profiling import named
from dslearn.sim import cost
from dslearn.sim.cost import plot, profile, record
from dslearn.sim.cost.report import as_data, show
from dslearn.sim.cost.trace import lanes, trace, write

M, K, N = 4, 256, 512


@pytest.fixture(scope="module")
def product():
    kernel, arguments = named("naive_fp8", [f"{M}x{K}x{N}"])
    return profile(kernel[2], *arguments)


def test_bytes_products_and_shares_are_those_of_the_kernel(product):
    weights, scales = N * K, (N // 32) * (K // 32) * 32  # a scale byte reaches 32 partitions
    assert product.hbm_read == 2 * (M * K * 2) + weights + scales, "both cores read x"
    assert product.hbm_written == M * N * 2
    assert product.macs == M * K * N and product.counts["nc_matmul"] == 2 * 2
    seconds = product.us / 1e6
    assert product.hbm_share == pytest.approx(
        (product.hbm_read + product.hbm_written) / seconds / 725e9
    )
    assert product.pe_share == pytest.approx(product.macs * 2 / seconds / (2 * 78.6e12), rel=1e-3)
    assert product.cores == len(product.peaks) == 2 and product.peaks[0]["psum"] > 0
    assert product.total_us == product.us + product.launch_us
    assert 0 < product.busy_us["vector"][0] < product.us


def test_the_critical_path_adds_up(product):
    assert sum(link.us for link in product.path) == pytest.approx(product.us)
    assert sum(link.share for link in product.path) == pytest.approx(1)
    assert product.path[0].us == max(link.us for link in product.path)


def test_the_table_always_says_modelled(product):
    out = io.StringIO()
    show(product, Console(file=out, width=100))
    text = out.getvalue()
    assert text.count("modelled") >= 5 and "not measured" in text
    for word in ("naive_fp8", "Vector", "DMA", "HBM", "critical path", product.bound):
        assert word in text.replace("\n", " "), word


def test_the_data_survives_json(product):
    data = json.loads(json.dumps(as_data(product)))
    assert data["modelled"] is True and data["kernel"] == "naive_fp8"
    assert data["kernel_us"] == product.us and data["critical_path"][0]["share"] > 0
    assert data["hbm_bytes"] == {"read": product.hbm_read, "written": product.hbm_written}


def test_the_trace_has_the_form_of_chrome_trace_events(product, tmp_path):
    write(product, str(tmp_path / "t.json"))
    document = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))
    assert document == trace(product) and "not measured" in document["otherData"]["times"]
    events = document["traceEvents"]
    kinds = {event["ph"] for event in events}
    assert kinds == {"X", "M"}
    for event in events:
        assert isinstance(event["name"], str) and type(event["pid"]) is type(event["tid"]) is int
        if event["ph"] == "X":
            assert event["ts"] >= 0 and event["dur"] >= 0 and isinstance(event["cat"], str)
        else:
            assert event["name"] in ("process_name", "thread_name") and event["args"]["name"]
    complete = [event for event in events if event["ph"] == "X"]
    assert len(complete) == sum(product.counts.values())
    assert max(e["ts"] + e["dur"] for e in complete) <= product.us + 1e-6
    named_threads = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in complete} == named_threads


def test_lanes_never_overlap(product):
    found = lanes(product.steps)
    assert {core for core, _ in found} == {0, 1} and (0, "dma load 1") in found
    for pieces in found.values():
        assert all(a[1] <= b[0] for a, b in zip(pieces, pieces[1:], strict=False))


def test_the_picture_shows_what_was_busy(product, tmp_path):
    pytest.importorskip("matplotlib")
    rows = plot.bars(product)
    assert list(rows)[: len(plot.ROWS)] == list(plot.ROWS) and rows["scalar"] == []
    width = sum(width for _, width in rows["vector"])
    assert width == pytest.approx(product.busy_us["vector"][0], rel=1e-6)
    plot.save(product, str(tmp_path / "t.png"))
    assert (tmp_path / "t.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(UsageError, match="--plot .*txt"):
        plot.save(product, str(tmp_path / "t.txt"))


def test_without_matplotlib_the_picture_says_what_to_install(product, monkeypatch):
    def absent(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(plot, "import_module", absent)
    with pytest.raises(UsageError, match="pip install 'dslearn"):
        plot.save(product, "t.png")


def test_two_cores_halve_a_norm_of_many_rows():
    x, weight = np.ones((1024, 2048), np.float32), np.ones(2048, np.float32)
    one, two = (profile(rmsnorm[cores], x, weight, 1e-6) for cores in (1, 2))
    assert one.hbm_read == x.nbytes + 128 * weight.nbytes
    assert 1.4 < one.us / two.us < 2


def test_one_launch_is_recorded():
    recording = record(naive_fp8[1], *named("naive_fp8", ["1x32x32"])[1])
    assert recording.kernel == "naive_fp8" and len(recording.cores) == 1
    assert all(
        step.instruction.core == 0
        for step in profile(
            rmsnorm, np.ones((2, 4), np.float32), np.ones(4, np.float32), 1e-6
        ).steps
    )


def test_a_kernel_that_was_not_recorded_cannot_be_modelled(monkeypatch):
    monkeypatch.setattr(cost, "simulate", lambda kernel: lambda *arguments: None)
    with pytest.raises(UsageError, match="0 launches were recorded"):
        record(rmsnorm)
