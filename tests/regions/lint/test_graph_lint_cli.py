"""`dslearn lint graph` and `dslearn lint model`: what they print, and their exit codes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from dslearn.cli import main
from dslearn.regions.lint import RULES

MODULE = """
import torch

def step(x):
    return x.double()

def ready():
    return step, torch.ones(3)

def scaled(x, w):
    return x @ w.T

def wrong():
    return torch.ones(3)

number = 3
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "graph_lint_target.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "graph_lint_target", raising=False)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["lint", "graph", *arguments])
    streams = capsys.readouterr()
    return code, streams.out, streams.err


def test_a_function_brings_its_inputs(capsys):
    code, out, err = run(capsys, "graph_lint_target:ready")
    first, summary = out.splitlines()
    assert first.startswith("graph_lint_target.py:5:1: error float64: torch.float64 begins here (")
    assert (code, summary, err) == (1, "1 operation: 1 error, 0 warnings", "")


def test_inputs_are_described(capsys):
    given = ["--input", "float32[1,8]", "--input", "float32[4, 7]"]
    code, out, err = run(capsys, "graph_lint_target:scaled", *given)
    assert code == 2 and "the function fails on these inputs" in err
    given[-1] = "float32[4, 8]"
    code, out, err = run(capsys, "graph_lint_target:scaled", *given)
    assert (code, out, err) == (0, "2 operations: 0 errors, 0 warnings\n", "")


def test_levels_and_json(capsys):
    code, out, _ = run(capsys, "graph_lint_target:ready", "--level", "float64=warn", "--json")
    read = json.loads(out)
    assert (code, read["errors"], read["operations"]) == (0, 0, 1)
    (found,) = read["findings"]
    assert found["level"] == "warn" and found["line"] == 5 and found["column"] == 1
    assert (found["path"], found["rule"]) == ("graph_lint_target.py", "float64")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name a MODULE:FUNCTION"),
        (["graph_lint_target"], "must be MODULE:FUNCTION"),
        (["graph_lint_target:nothing"], "has no attribute 'nothing'"),
        (["graph_lint_nowhere:step"], "No module named"),
        (["graph_lint_target:number"], "is int: must be a function"),
        (["graph_lint_target:step"], "give the inputs with --input"),
        (["graph_lint_target:wrong"], "gave Tensor: must be (function, inputs...)"),
        (["graph_lint_target:step", "--input", "float32"], "must be DTYPE[SIZES]"),
        (["graph_lint_target:step", "--input", "floaty[2]"], "must be DTYPE[SIZES]"),
        (["graph_lint_target:ready", "--level", "float64"], "must be RULE=LEVEL"),
        (["graph_lint_target:ready", "--level", "float46=off"], "no such rule"),
        (["graph_lint_target:ready", "--level", "float64=loud"], "must be error, warn or off"),
        (["--explain", "float46"], "--explain float46: no such rule"),
    ],
)
def test_wrong_usage_exits_with_2_and_one_line(arguments, said, capsys):
    code, out, err = run(capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1) and said in err


def test_the_page_shows_the_table_of_rules(capsys):
    code, out, _ = run(capsys, "--rules")
    rows = out.splitlines()
    assert code == 0 and [row.split("`")[1] for row in rows[2:]] == list(RULES)
    assert all(row.replace("\\|", "").count("|") == 7 for row in rows)
    page = Path(__file__).parents[3] / "docs" / "regions.md"
    assert out in page.read_text(encoding="utf-8"), "paste `dslearn lint graph --rules`"


def test_a_rule_is_explained_with_both_examples(capsys):
    code, out, _ = run(capsys, "--explain", "float64")
    refused, _, legal = out.partition("# legal")
    assert code == 0 and "x.double()" in refused and "x.double()" not in legal and "x / 3" in legal


@pytest.mark.slow
def test_every_role_of_tiny_is_linted(capsys):
    code = main(["lint", "model"])
    *found, summary = capsys.readouterr().out.splitlines()
    roles = [line.partition(":")[0] for line in found if " operations" in line]
    assert len(set(roles)) == len(roles) == 7
    assert (roles[0], roles[-1]) == ("ratio 0, window only", "output")
    assert found[len(roles) :] == [] and summary.endswith(" operations: 0 errors, 0 warnings")
    assert code == 0


def test_a_file_named_for_its_module(tmp_path, capsys):
    for given in ("graph_lint_target.py", "./graph_lint_target.py"):
        code, out, err = run(capsys, f"{given}:ready")
        assert code == 2 and "named without .py, as in graph_lint_target:ready\n" in err, err
    (tmp_path / "lacking.py").write_text("import no_such_module")
    assert "No module named 'no_such_module'" in run(capsys, "lacking.py:f")[2]
    package = tmp_path / "graph_lint_package"
    package.mkdir()
    (package / "py.py").write_text(MODULE)
    assert run(capsys, "graph_lint_package.py:ready")[0] == 1, "a module may be called py"
