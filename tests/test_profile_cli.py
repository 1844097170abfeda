"""`dslearn profile`: names, paths, shapes, outputs, refusals."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dslearn import profiling
from dslearn.cli import main
from tests.support.vendor import REAL, python, write


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


def test_a_path_may_take_whole_numbers(capsys):
    product = "dslearn.kernels.fp8_linear:fp8_linear"
    arrays = ["2x64:bfloat16", "128x1x1x128:uint8", "128x1x1x4:uint8", "100:int"]
    shapes = [word for shape in arrays for word in ("--shape", shape)]
    assert main(["profile", product, *shapes, "--cores", "1", "--json"]) == 0
    written = json.loads(capsys.readouterr().out)["hbm_bytes"]["written"]
    assert written == 2 * 100 * 2, "N is 100, though tiles hold 128"


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
        (["dslearn.kernels.rmsnorm:rmsnorm", "--shape", "0.5:int"], "a whole number, as in 7:int"),
        (["rmsnorm", "--shape", "40000000x51200"], "profile a part of it"),
        (["naive_fp4", "--shape", "1x40000000x51200"], "profile a part of it"),
        (["rmsnorm"], "--shape"),
        (
            ["dslearn.kernels.hc_mixes:hc_mixes", "--shape", "6x4x5120"],
            "takes 6 to 7 arguments (h, fn, base, scale, norm_eps, hc_eps, iterations), 1 given: "
            "each wants one --shape, an array as 64x5120, a number as 1e-6 or 7:int",
        ),
        (
            ["dslearn.kernels.rmsnorm:rmsnorm", *["--shape", "4"] * 4],
            "rmsnorm takes 3 arguments (x, weight, eps), 4 given",
        ),
        (["rmsnorm", "--shape", "4x4", "--cores", "3"], "--cores"),
    ],
)
def test_wrong_usage_is_one_line(arguments, message, capsys):
    assert main(["profile", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_a_picture_that_has_no_place_is_refused_before_the_work(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    with monkeypatch.context() as context:
        context.setattr(profiling, "profile", lambda *_: pytest.fail("profiled first"))
        where = tmp_path / "nowhere" / "x.png"
        assert main(["profile", "rmsnorm", "--shape", "4x4", "--plot", str(where)]) == 2
        assert f"--plot {where}: {where.parent} is no folder; make it" in capsys.readouterr().err
    taken = tmp_path / "x.png"
    taken.mkdir()
    assert main(["profile", "rmsnorm", "--shape", "4x4", "--plot", str(taken)]) == 2
    assert capsys.readouterr().err == f"dslearn: --plot {taken}: Is a directory\n"


def test_arguments_are_what_the_text_says():
    whole = profiling._argument("3x4:uint8")
    assert whole.dtype == np.uint8 and whole.shape == (3, 4) and whole.max() < 100
    assert profiling._argument("7").shape == (7,) and profiling._argument("1e-6") == 1e-6
    seven = profiling._argument("7:int")
    assert seven == 7 and type(seven) is int and profiling._argument("-1:int") == -1
    assert profiling._argument("2x2:float8_e4m3").dtype.itemsize == 1


def test_what_does_not_fit_into_memory_is_one_line(monkeypatch, capsys):
    def full(*_):
        raise MemoryError("Unable to allocate")

    monkeypatch.setattr(profiling.cost, "profile", full)
    assert main(["profile", "rmsnorm", "--shape", "4x4"]) == 2
    error = capsys.readouterr().err
    assert "rmsnorm with --shape 4x4 does not fit into memory" in error and error.count("\n") == 1


def test_with_the_vendors_nki_the_stand_in_profiles_in_a_child(tmp_path, capsys):
    write(tmp_path, REAL)
    line = ["profile", "rmsnorm", "--shape", "64x512", "--json"]
    apart = python(tmp_path, "-m", "dslearn", *line)
    assert main(line) == 0
    assert (apart.returncode, apart.stdout) == (0, capsys.readouterr().out), apart.stderr
    code = """
from dslearn import kernels, profiling
from dslearn.sim import installed
found = profiling.profile("rmsnorm", ["4x64"], 2)
print(found.kernel, len(found.steps) > 4, found.bound[:5], kernels.NKI.status, installed())
"""
    here = python(tmp_path, "-c", code)
    assert here.stdout == "rmsnorm True bound real False\n", here.stderr


KERNEL = """
import nki, nki.isa as nisa, nki.language as nl

@nki.jit
def kernel(x, rows):
    print("tracing", rows)
    tile = nl.ndarray((rows, 4), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x[0:rows, :])
    y = nl.ndarray((rows, 4), dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=y, src=tile)
    return y
"""


@pytest.mark.parametrize(
    ("rows", "code", "words"),
    [("7:int", 0, ""), ("300:int", 2, "[rule partition-limit"), ("0.5", 2, "0.5")],
)
def test_a_users_kernel_in_a_child(rows, code, words, tmp_path):
    write(tmp_path, REAL | {"mine.py": KERNEL})
    arguments = ["--shape", "300x4", "--shape", rows, "--json", "--cores", "1"]
    ran = python(tmp_path, "-m", "dslearn", "profile", "mine:kernel", *arguments)
    assert ran.returncode == code, ran.stderr
    assert words in ran.stderr and ran.stderr.count("\n") == (code == 2)
    assert "tracing" in ran.stdout, "what a kernel prints is seen"
