"""`dslearn lint kernels`: what it prints, its exit codes, and comments that allow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dslearn import lint_cli
from dslearn.cli import main
from dslearn.sim.lint import RULES, lint
from dslearn.sim.lint.examples import frame
from tests.support.lint import findings, in_kernel

ERROR = frame("if n is None:\n    n = 2")
WARNING = frame("for i in nl.affine_range(2):\n    n = i")


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = main(["lint", "kernels", *map(str, arguments)])
    streams = capsys.readouterr()
    return code, streams.out, streams.err


def test_errors_exit_with_1_and_warnings_with_0(tmp_path, capsys):
    (tmp_path / "a.py").write_text(ERROR)
    (tmp_path / "b.py").write_text(WARNING)
    code, out, err = run(capsys, tmp_path)
    first, second, summary = out.splitlines()
    assert first.startswith(f"{tmp_path / 'a.py'}:10:8: error identity-test: `n is None` (")
    assert second.startswith(f"{tmp_path / 'b.py'}:10:14: warn deprecated-range: nl.affine_range (")
    assert (code, summary, err) == (1, "2 kernels in 2 files: 1 error, 1 warning", "")
    code, out, _ = run(capsys, tmp_path / "b.py")
    assert (code, len(out.splitlines())) == (0, 2)


def test_rules_are_turned_off_one_by_one(tmp_path, capsys):
    (tmp_path / "a.py").write_text(ERROR)
    (tmp_path / "b.py").write_text(WARNING)
    code, out, _ = run(capsys, tmp_path, "--off", "identity-test", "--off", "deprecated-range")
    assert (code, out) == (0, "2 kernels in 2 files: 0 errors, 0 warnings\n")


def test_json_says_the_same(tmp_path, capsys):
    (tmp_path / "a.py").write_text(ERROR)
    code, out, _ = run(capsys, tmp_path, "--json")
    read = json.loads(out)
    assert code == 1 and (read["files"], read["kernels"], read["errors"]) == (1, 1, 1)
    assert read["findings"] == [
        {
            "path": str(tmp_path / "a.py"),
            "line": 10,
            "column": 8,
            "rule": "identity-test",
            "level": "error",
            "message": "`n is None`",
            "fix": "compare with == or !=",
        }
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.py"], "no such file or folder"),
        (["."], "no Python file in this folder"),
        (["a.txt"], "a.txt: kernels are read from Python files"),
        (["a.py", "--off", "identity"], "--off identity: no such rule"),
        (["--explain", "identity"], "--explain identity: no such rule"),
        (["--frobnicate"], "No such option"),
    ],
)
def test_wrong_usage_exits_with_2_and_one_line(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text(ERROR)
    code, out, err = run(capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1) and said in err


def test_the_default_is_the_package_and_it_is_clean(monkeypatch, tmp_path, capsys):
    assert Path("dslearn", "kernels").parts == lint_cli.KERNELS.parts[-2:]
    code, out, err = run(capsys)
    assert code == 0 and " 0 errors, 0 warnings" in out, out + err
    (tmp_path / "a.py").write_text(ERROR)
    monkeypatch.setattr(lint_cli, "KERNELS", tmp_path)
    assert run(capsys)[0] == 1


def test_the_table_has_a_row_for_every_rule(capsys):
    code, out, _ = run(capsys, "--rules")
    rows = out.splitlines()
    assert code == 0 and rows[1] == "|---|---|---|---|---|"
    assert [row.split("`")[1] for row in rows[2:]] == list(RULES)
    assert all(row.replace("\\|", "").count("|") == 6 for row in rows)


def test_a_rule_is_explained_with_both_examples(capsys):
    code, out, _ = run(capsys, "--explain", "identity-test")
    assert code == 0 and "if n is not None:" in out.partition("# legal")[0]
    assert "if n != None:" in out.partition("# legal")[2]


def test_a_comment_with_a_reason_allows_one_rule_on_one_line(tmp_path):
    allow = "# nki: allow identity-test None is never a tensor here"
    assert in_kernel(tmp_path, f"n = n is None  {allow}") == []
    assert in_kernel(tmp_path, f"{allow}\nn = n is None") == []
    assert in_kernel(tmp_path, f"n = (n\n     is None)  {allow}") == []
    assert in_kernel(tmp_path, f"{allow}\nn = 1\nn = n is None") == ["identity-test"]
    both = "n = {n is None}  # nki: allow identity-test,set-value folded while compiling"
    assert in_kernel(tmp_path, both) == []
    assert in_kernel(tmp_path, f"n = {{n is None}}  {allow}") == ["set-value"]


@pytest.mark.parametrize(
    ("comment", "said"),
    [
        ("# nki: allow identity-test", "no reason to allow identity-test"),
        ("# nki: allow identity because", "no rule is called identity"),
        ("#nki:allow", "no rule is named"),
    ],
)
def test_a_comment_that_allows_nothing_is_reported(comment, said, tmp_path):
    found = findings(tmp_path, frame(f"n = n is None  {comment}"))
    assert [f.rule for f in found] == ["identity-test", "allow-comment"]
    assert found[1].message == said and found[1].level == "error"


def test_comments_are_read_in_the_encoding_of_the_file(tmp_path):
    allow = "  # nki: allow identity-test \u00e9 in the reason"
    source = frame(f"n = n is None{allow}").replace("import nki\n", "# coding: latin-1\n", 1)
    path = tmp_path / "a.py"
    path.write_bytes(source.encode("latin-1"))
    assert lint([path]).findings == () and b"\xe9" in path.read_bytes()
    path.write_bytes(b"\xef\xbb\xbf" + frame(f"n = n is None{allow}").encode())
    assert lint([path]).findings == ()


def test_text_that_looks_like_a_comment_allows_nothing(tmp_path):
    text = "n = n is None, '# nki: allow identity-test in a string'"
    assert in_kernel(tmp_path, text) == ["identity-test"]


def test_house_rules_are_errors_in_the_package_only(tmp_path):
    source = frame("nisa.tensor_copy(tile, tile)")
    (outside,) = findings(tmp_path, source, "kernels/a.py")
    (inside,) = findings(tmp_path, source, "dslearn/kernels/a.py")
    assert (outside.level, inside.level) == ("warn", "error")
    assert outside.rule == inside.rule == "keywords-only"


def test_a_file_that_is_no_python_does_not_stop_the_others(tmp_path):
    (tmp_path / "a.py").write_bytes(b"x = '\xff'\n")
    (tmp_path / "b.py").write_text("def f(:\n")
    (tmp_path / "c.py").write_text(ERROR)
    (tmp_path / "d.py").write_bytes(b"x = 1\x00\n")
    found = lint([tmp_path]).findings
    assert [f.rule for f in found] == ["syntax", "syntax", "identity-test", "syntax"]


def test_files_are_read_once_and_hidden_folders_never(tmp_path):
    (tmp_path / "a.py").write_text(ERROR)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "b.py").write_text(ERROR)
    report = lint([tmp_path, tmp_path / "a.py", tmp_path / "." / "a.py"])
    assert (report.files, len(report.findings)) == (1, 1)


def test_nothing_is_imported_or_run(tmp_path):
    source = "raise SystemExit('ran')\n" + ERROR
    assert [f.rule for f in findings(tmp_path, source)] == ["identity-test"]
