"""`dslearn explain`: tables on stdout, a picture in a file, one line per error."""

from __future__ import annotations

import io
import sys

import pytest

from dslearn.cli import main

PROMPT = "def main("


def test_tables_and_picture(tmp_path, capsys):
    picture = tmp_path / "why.svg"
    assert main(["explain", PROMPT, "--step", "1", "--out", str(picture)]) == 0
    out, err = capsys.readouterr()
    assert err == "" and "position 5 reads 'text'" in out, "<begin>, four tokens, one new"
    assert all(f"{n} {role}" in out for n, role in enumerate(("local", "full", "reuse")))
    assert "Engram" in out and "<svg" in picture.read_text(encoding="utf-8")


def test_a_pipe_is_a_prompt(capsys, monkeypatch):
    stdin = io.TextIOWrapper(io.BytesIO(b"x"))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert main(["explain", "-"]) == 0
    assert "position 1 reads 'x'" in capsys.readouterr().out


def test_tables_need_no_matplotlib_and_pictures_say_what_to_install(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["explain", "x"]) == 0
    assert "position 1" in capsys.readouterr().out
    assert main(["explain", "x", "--out", "x.png"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "pip install 'dslearn[notebooks]'" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([""], "the prompt is empty"),
        ([PROMPT, "--step", "-1"], "a step is 0 or more"),
        ([PROMPT, "--step", "5000"], "knows 4096 positions"),
        ([PROMPT, "--step", "one"], "'--step'"),
        ([PROMPT, "--out", "why.gif"], "ends in .png or .svg"),
        ([PROMPT, "--out", "no/such/place/why.png"], "No such file"),
        ([PROMPT, "--model", "no-such-model"], "no-such-model"),
        ([PROMPT, "more"], "more"),
    ],
)
def test_errors_are_one_line_and_exit_2(arguments, words, capsys):
    assert main(["explain", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("dslearn: ") and err.count("\n") == 1 and words in err, err
