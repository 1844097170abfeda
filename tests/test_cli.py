"""The command line: what it prints where, and its exit codes. The model is a stand-in here."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest

import dslearn
from dslearn.cli import main
from dslearn.errors import UsageError

ROOT = Path(__file__).parents[1]


class FakeLM:
    """Remembers what `generate` was called with and yields fixed pieces."""

    calls: list[tuple[str, dict]] = []
    pieces: tuple[str, ...] = ("a", "b", "\n")

    def generate(self, prompt: str, **options):
        self.calls.append((prompt, options))
        if prompt == "too long":
            raise UsageError("the prompt has 9 tokens:\nat most 8")
        yield from self.pieces


@pytest.fixture
def lm(monkeypatch: pytest.MonkeyPatch) -> type[FakeLM]:
    monkeypatch.setattr(FakeLM, "calls", [])
    monkeypatch.setitem(vars(dslearn), "load", lambda model: FakeLM())
    return FakeLM


class Pipe(io.TextIOWrapper):
    """A stdin that is a pipe holding `data`."""

    def __init__(self, data: bytes, tty: bool = False) -> None:
        super().__init__(io.BytesIO(data), encoding="ascii")
        self.isatty = lambda: tty  # type: ignore[method-assign]


def test_generate_passes_every_option_on(lm, capsys):
    options = "--max-tokens 3 --temperature .5 --top-p .9 --seed 7 --stop x --stop yy"
    assert main(["generate", "def main(", *options.split()]) == 0
    expected = {"max_new_tokens": 3, "temperature": 0.5, "top_p": 0.9, "seed": 7}
    assert lm.calls == [("def main(", expected | {"stop": ["x", "yy"]})]
    assert capsys.readouterr().out == "ab\n"


def test_generate_is_greedy_and_ends_its_line(lm, capsys, monkeypatch):
    monkeypatch.setattr(lm, "pieces", ("é", ""))
    assert main(["generate", "x"]) == 0
    assert lm.calls[0][1]["temperature"] == 0.0 and lm.calls[0][1]["stop"] == []
    assert capsys.readouterr().out == "é\n"


@pytest.mark.parametrize("arguments", [["generate"], ["generate", "-"]])
def test_generate_reads_a_pipe_byte_for_byte(lm, monkeypatch, arguments):
    monkeypatch.setattr(sys, "stdin", Pipe("naïve\n\n".encode()))
    assert main(arguments) == 0
    assert lm.calls[0][0] == "naïve\n\n"


@pytest.mark.parametrize(
    "arguments, stdin, words",
    [
        (["generate", ""], b"", "the prompt is empty"),
        (["generate"], b"", "the prompt is empty"),
        (["generate", "-"], b"\xff\xfe", "stdin is not UTF-8"),
        (["generate", "a\udcffb"], b"", "the prompt is not UTF-8"),
        (["generate", "too long"], b"", "the prompt has 9 tokens: at most 8"),
        (["generate", "x", "--max-tokens", "many"], b"", "'--max-tokens'"),
        (["generate", "x", "--bogus"], b"", "--bogus"),
        (["generate", "x", "y"], b"", "y"),
        (["nonsense"], b"", "'nonsense'"),
        (["inspect"], b"", "argument"),
        (["doctor", "now"], b"", "now"),
    ],
)
def test_wrong_usage_is_one_line_on_stderr_and_exit_2(
    lm, capsys, monkeypatch, arguments, stdin, words
):
    monkeypatch.setattr(sys, "stdin", Pipe(stdin))
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("dslearn: ") and err.count("\n") == 1 and words in err, err


def test_no_prompt_at_a_terminal_is_wrong_usage(lm, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", Pipe(b"", tty=True))
    assert main(["generate"]) == 2
    assert "no prompt" in capsys.readouterr().err


def test_interrupted_quietly(capsys, monkeypatch):
    def interrupt(model: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(vars(dslearn), "load", interrupt)
    assert main(["generate", "x"]) == 130
    assert capsys.readouterr() == ("", "")


def test_a_bug_is_not_hidden(monkeypatch):
    monkeypatch.setitem(vars(dslearn), "load", lambda model: 1 / 0)
    with pytest.raises(ZeroDivisionError, match="division"):
        main(["generate", "x"])


def test_help_and_version(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("generate", "golden", "inspect", "doctor"))
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"dslearn {dslearn.__version__}\n"
    assert main([]) == 2
    assert "Usage" in capsys.readouterr().err


@pytest.mark.parametrize("equal, code", [(True, 0), (False, 1)])
def test_golden_exits_1_when_a_token_differs(monkeypatch, equal, code):
    seen = []
    fake = types.ModuleType("dslearn.engine.golden")
    fake.run = lambda show: bool(seen.append(show)) or equal  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "dslearn.engine", types.ModuleType("dslearn.engine"))
    monkeypatch.setitem(sys.modules, "dslearn.engine.golden", fake)
    assert main(["golden", "--check"]) == code
    assert main(["golden", "--show"]) == code
    assert seen == [False, True]


def test_inspect_passes_tensor_and_tile_on(monkeypatch, capsys, tmp_path):
    fake = types.ModuleType("dslearn.checkpoint.report")
    fake.inspect = lambda where, tensor, tile: [where.name, f"{tensor} {tile}"]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "dslearn.checkpoint.report", fake)
    assert main(["inspect", "tiny", "--tensor", "norm.weight", "--tile", "0,3"]) == 0
    assert capsys.readouterr().out == "tiny\nnorm.weight 0,3\n"


def test_inspect_of_no_checkpoint_is_one_line(tmp_path, capsys):
    assert main(["inspect", str(tmp_path / "nowhere")]) == 2
    err = capsys.readouterr().err
    assert "nowhere" in err and err.count("\n") == 1


CHILD = """
import sys, dslearn, dslearn.cli
class LM:
    def generate(self, prompt, **options):
        while True:
            yield "\\u00e9" * 1000
dslearn.load = lambda model: LM()
sys.exit(dslearn.cli.main(["generate", "x"]))
"""


@pytest.mark.skipif(os.name == "nt", reason="signals and pipes of POSIX")
def test_a_reader_that_leaves_and_an_interrupt_leave_no_traceback():
    environment = os.environ | {"PYTHONPATH": str(ROOT), "LC_ALL": "C", "PYTHONUTF8": "0"}
    for leave, code in ((True, 141), (False, 130)):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # A parent in the background ignores interrupts, and a child inherits that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
        )
        assert child.stdout and child.stderr
        assert child.stdout.read(4).decode() == "éé"
        if leave:
            child.stdout.close()
        else:
            child.send_signal(signal.SIGINT)
            child.stdout.read()
        assert child.wait(timeout=60) == code
        assert child.stderr.read() == b""
