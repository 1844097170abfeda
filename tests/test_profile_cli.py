"""`dslearn profile`: names, paths, shapes, outputs, refusals."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dslearn import profiling
from dslearn.cli import main
from dslearn.errors import BackendError, UsageError


def test_a_kernel_by_name(capsys):
    assert main(["profile", "rmsnorm", "--shape", "64x512"]) == 0
    text = capsys.readouterr().out
    assert "rmsnorm on 2 core(s), modelled" in text and "not measured" in text


@pytest.mark.parametrize("kernel", sorted(profiling.CASES))
def test_every_name_runs(kernel, capsys):
    shape = "x".join(["32"] + ["64"] * (len(profiling.CASES[kernel].sizes) - 1))
    assert main(["profile", kernel, "--shape", shape, "--json", "--cores", "1"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["kernel"] == kernel and data["modelled"] and data["cores"] == 1
    assert data["kernel_us"] > 2, "nothing is faster than one DMA"


def test_a_kernel_by_path_with_an_array_per_shape(capsys):
    path = "dslearn.kernels.rmsnorm:rmsnorm"
    shapes = ["--shape", "64x512:bfloat16", "--shape", "512:bfloat16", "--shape", "1e-6"]
    assert main(["profile", path, *shapes, "--json"]) == 0
    by_path = json.loads(capsys.readouterr().out)
    assert main(["profile", "rmsnorm", "--shape", "64x512", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == by_path


def test_files(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    trace, plot = tmp_path / "t.json", tmp_path / "t.svg"
    where = ["--trace", str(trace), "--plot", str(plot)]
    assert main(["profile", "swiglu", "--shape", "8x64", *where]) == 0
    assert json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    assert "<svg" in plot.read_text(encoding="utf-8") and capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing", "--shape", "4x4"], "no kernel 'nothing': one of rmsnorm"),
        (["rmsnorm", "--shape", "4"], "rmsnorm takes ROWSxCOLUMNS"),
        (["rmsnorm", "--shape", "4x4", "--shape", "4x4"], "one --shape ROWSxCOLUMNS"),
        (["rmsnorm", "--shape", "4xfour"], "whole numbers from 1"),
        (["rmsnorm", "--shape", "0x4"], "whole numbers from 1"),
        (["no_such:kernel", "--shape", "4x4"], "No module named 'no_such'"),
        (["dslearn.kernels.rmsnorm:none", "--shape", "4x4"], "has no 'none'"),
        (["dslearn.kernels.rmsnorm:load_tile", "--shape", "4x4"], "mark it with @nki.jit"),
        (["dslearn.kernels.rmsnorm:rmsnorm", "--shape", "4x4:fp3"], "dtypes are bool_"),
        (["rmsnorm"], "--shape"),
        (["rmsnorm", "--shape", "4x4", "--cores", "3"], "--cores"),
    ],
)
def test_wrong_usage_is_one_line(arguments, message, capsys):
    assert main(["profile", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_arguments_are_what_the_text_says():
    whole = profiling._argument("3x4:uint8")
    assert whole.dtype == np.uint8 and whole.shape == (3, 4) and whole.max() < 100
    assert profiling._argument("7").shape == (7,) and profiling._argument("1e-6") == 1e-6
    assert profiling._argument("2x2:float8_e4m3").dtype.itemsize == 1


def test_only_the_stand_in_can_be_profiled(monkeypatch):
    class Real:
        status = "real"

    monkeypatch.setattr(profiling.kernels, "NKI", Real)
    with pytest.raises(BackendError, match="nki is real"):
        profiling.profile("rmsnorm", ["4x4"], 1)
    with pytest.raises(UsageError, match="no kernel"):
        profiling.named("none", ["4x4"])
