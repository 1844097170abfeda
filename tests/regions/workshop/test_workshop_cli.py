"""`dslearn workshop`: what it prints, what it writes, and its exit codes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dslearn.cli import main
from dslearn.regions import workshop
from dslearn.regions.workshop import Outcome

MODULE = """
import torch
from dslearn.regions.workshop import Fault, RuleCompiler
from dslearn.regions.workshop.rule_compiler import feeds, longer_than

crashing = RuleCompiler([Fault(feeds("erf", "cos"), "NCC_IINL902", "InsertLoops")])
short = RuleCompiler([Fault(longer_than(2))])
flaky = RuleCompiler([Fault(feeds("erf", "cos"), rate=0.4)], seed=1)

def step(x):
    y = torch.erf(x.neg().abs())
    return torch.cos(y).exp() + x

def ready():
    return step, torch.ones(3)
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "workshop_target.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "workshop_target", raising=False)


def run(capsys, *arguments):
    code = main(["workshop", *arguments])
    streams = capsys.readouterr()
    return code, streams.out, streams.err


def test_reduce_writes_a_file_that_fails_again(capsys, tmp_path):
    backend = ["--backend", "workshop_target:crashing"]
    options = ["--input", "float32[3]", "--out", "found.py", "--timeout", "0"]
    code, out, err = run(capsys, "reduce", "workshop_target:step", *backend, *options)
    assert (code, err) == (0, "")
    assert "2 of 6 operations" in out
    assert out.splitlines()[-1] == "Try again: python found.py --backend workshop_target:crashing"
    command = [sys.executable, "found.py", *backend]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 1 and "compile 1: crash CompilerCrash: NCC_IINL902" in ran.stdout


def test_rate_counts_and_bounds(capsys):
    options = ["--backend", "workshop_target:flaky", "--compiles", "10", "--timeout", "0"]
    code, out, err = run(capsys, "rate", "workshop_target:ready", *options)
    *lines, last = out.splitlines()
    assert code == 1 and last.startswith(f"{len(lines)} of 10 compiles failed: a rate between 0.")
    assert all("crash: CompilerCrash" in line for line in lines)
    options[1] = "eager"
    code, out, err = run(capsys, "rate", "workshop_target:ready", *options)
    assert (code, out) == (0, "0 of 10 compiles failed: a rate between 0.000 and 0.308\n")


def test_compiles_are_in_a_child_unless_the_time_is_0(capsys, monkeypatch):
    asked = []

    def in_child(backend, timeout):
        asked.append((backend, timeout))
        return lambda case: Outcome("killed", "SIGSEGV")

    monkeypatch.setattr(workshop, "in_child", in_child)
    options = ["--backend", "aot_eager", "--compiles", "1"]
    code, out, err = run(capsys, "rate", "workshop_target:ready", *options)
    assert (code, err, asked) == (1, "", [("aot_eager", 3600.0)])
    assert out.startswith("compile 1: killed: SIGSEGV\n1 of 1 compiles failed")


def test_split_names_the_pieces(capsys):
    options = ["--backend", "workshop_target:short", "--timeout", "0"]
    code, out, err = run(capsys, "split", "workshop_target:ready", *options)
    first, *_, last = out.splitlines()
    assert (code, err) == (0, "")
    assert first == "piece 1: 2 operations, neg to abs_1" and last.startswith("3 pieces, found in ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rate", "workshop_target:ready", "--backend", "nothing"], "--backend nothing: must be"),
        (["rate", "workshop_target:ready"], "Missing option '--backend'"),
        (["split", "workshop_target", "--backend", "eager"], "must be MODULE:FUNCTION"),
        (
            ["reduce", "workshop_target:ready", "--backend", "eager", "--out", "none/found.py"],
            "--out none/found.py: must be a file, in a folder that is there",
        ),
        (
            ["split", "workshop_target:ready", "--backend", "eager", "--rate", "2"],
            "rate=2.0: must be above 0 and at most 1",
        ),
        (
            ["reduce", "workshop_target:ready", "--backend", "eager", "--rate", "0", "--out", "f"],
            "rate=0.0: must be above 0 and at most 1",
        ),
    ],
)
def test_wrong_usage_exits_with_2_and_one_line(arguments, said, capsys):
    code, out, err = run(capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1) and said in err


def test_a_file_that_cannot_be_written_is_told_before_the_first_compile(capsys, monkeypatch):
    monkeypatch.setattr(workshop, "reduce", lambda *_, **__: pytest.fail("hours, for nothing"))
    target = ["reduce", "workshop_target:ready", "--backend", "eager", "--timeout", "0"]
    assert run(capsys, *target, "--out", ".")[0] == 2
