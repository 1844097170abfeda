"""The doctor names what is wrong, and is silent about nothing that matters."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import dslearn
from dslearn import doctor as doctor_module
from dslearn.doctor import Check, Report, doctor

ROOT = Path(__file__).parents[1]


def run(*arguments: str, path: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """`dslearn doctor` in a fresh interpreter that finds packages in `path` first."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith("DSLEARN_")}
    return subprocess.run(
        [sys.executable, "-m", "dslearn", "doctor", *arguments],
        env=variables | {"PYTHONPATH": os.pathsep.join([str(path), str(ROOT)])} | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_good_installation_exits_0_and_every_line_has_a_status():
    ran = run()
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stderr == ""
    lines = ran.stdout.splitlines()
    assert all(re.match(r"(OK|--)\s", line) for line in lines[:-1]), ran.stdout
    assert lines[-1] == "OK: dslearn works here"
    assert re.search(r"^OK   backend +cpu: no Neuron device", ran.stdout, re.M)
    assert re.search(r"^OK   sim +kernels run on dslearn's stand-in for nki$", ran.stdout, re.M)
    assert re.search(r"^--   neuron +no Neuron device: torch_neuronx is absent$", ran.stdout, re.M)


def test_a_placeholder_is_named_and_harms_nobody(tmp_path):
    (tmp_path / "nki").mkdir()
    (tmp_path / "nki" / "__init__.py").write_text('raise ImportError("WRONG PACKAGE: ...")')
    ran = run(path=tmp_path)
    assert ran.returncode == 0, ran.stdout
    assert re.search(r"^--   nki +placeholder: .*pip uninstall nki.*pip\.repos", ran.stdout, re.M)


def test_a_backend_that_cannot_serve_exits_1_and_says_which():
    ran = run("--line", DSLEARN_BACKEND="neuron")
    assert ran.returncode == 1
    assert "backend broken | FAIL: backend (DSLEARN_BACKEND=neuron asks for" in ran.stdout
    assert ran.stderr == ""


def test_another_backend_than_cpu_says_what_it_serves():
    ran = run(DSLEARN_BACKEND="sim")
    assert ran.returncode == 0, ran.stdout
    words = r"^OK   backend +sim: DSLEARN_BACKEND=sim asks for it; `dslearn generate --trace`"
    assert re.search(words, ran.stdout, re.M), ran.stdout


@pytest.mark.parametrize(
    ("nki", "line"),
    [
        ("import no_such_thing", "--   sim .*no kernel can be imported while nki is broken"),
        ("", "--   sim .*no kernel can be imported while nki is unknown"),
        ("raise ImportError('WRONG PACKAGE')", "OK   sim .*stand-in"),
        (
            "from types import SimpleNamespace as N\n"
            "isa, language = N(nc_matmul=1), N(fori_loop=1)",
            "OK   sim .*the vendor's nki.simulate",
        ),
    ],
    ids=["broken", "unknown", "placeholder", "real"],
)
def test_who_simulates_is_said_for_every_kind_of_nki(tmp_path, nki, line):
    (tmp_path / "nki").mkdir()
    (tmp_path / "nki" / "__init__.py").write_text(nki)
    ran = run(path=tmp_path)
    assert ran.returncode == 0 and re.search(f"^{line}", ran.stdout, re.M), ran.stdout


def test_a_broken_core_package_exits_1_with_the_command_that_mends_it(tmp_path):
    (tmp_path / "tokenizers.py").write_text("import nowhere_at_all")
    ran = run(path=tmp_path)
    assert ran.returncode == 1
    assert re.search(r"^FAIL tokenizers .*nowhere_at_all.*pip install", ran.stdout, re.M)
    assert ran.stdout.splitlines()[-1] == "FAIL: tokenizers"


def test_an_old_package_is_a_failure(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", types.SimpleNamespace(__version__="0.20.9"))
    failed = doctor(print=False).failures
    assert [check.name for check in failed] == ["tokenizers"]
    assert "0.20.9; at least 0.21 is needed" in failed[0].detail


@pytest.mark.parametrize("version, ok", [((3, 10), False), ((3, 11), True), ((3, 15), False)])
def test_python_versions(monkeypatch, version, ok):
    monkeypatch.setattr(sys, "version_info", version)
    check = doctor_module._python()
    assert (check.status == "OK") is ok
    assert ("3.11 to 3.14 is supported" in check.detail) is not ok


def test_missing_extras_are_noted_with_the_command(monkeypatch):
    monkeypatch.setitem(doctor_module.EXTRAS, "dev", ("pytest", "no-such-distribution"))
    check = doctor_module._extra("dev")
    assert check.status == "--"
    assert (
        "without no-such-distribution: pip install -c constraints.txt -e '.[dev]'" in check.detail
    )


def test_printing_is_optional_and_one_line_is_one_line(capsys):
    report = doctor(print=False)
    assert capsys.readouterr().out == ""
    doctor(line=True)
    assert capsys.readouterr().out == f"{report!r}\n"
    assert "\n" not in repr(report) and repr(report).endswith("| OK")


def test_dslearn_doctor_is_callable_before_and_after_the_module_is_imported(capsys):
    assert dslearn.doctor(print=False).ok
    assert dslearn.doctor.doctor is doctor
    assert capsys.readouterr().out == ""


def test_the_report_counts_failures():
    good, bad = Check("OK", "torch", "2.13"), Check("FAIL", "numpy", "gone")
    assert Report((good,)).exit_code == 0 and Report((good, bad)).exit_code == 1
    assert Report((good, bad)).failures == (bad,)
    assert str(Report((good, bad))).splitlines()[-1] == "FAIL: numpy"
