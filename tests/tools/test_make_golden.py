"""The tool that writes the golden file, on a random checkpoint: what it refuses, what it writes."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from dslearn.checkpoint.hashing import target_hash
from dslearn.engine import LM, golden

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
search = importlib.import_module("golden_search")
make_golden = importlib.import_module("make_golden")

PROMPT = "import os\n"


def model_and_twin(lm: LM, *, usual: float = 0.0, plain: float = 0.0) -> make_golden.Models:
    """The random model as its own twin, off by so much in every logit."""

    def stepwise(ids: list[int], tokens: list[int]) -> np.ndarray:
        return search.decode(lm, ids, len(tokens))[1].numpy() * np.float32(1 - usual)

    def at_once(ids: list[int], tokens: list[int]) -> np.ndarray:
        return search.teacher_forced(lm, ids, tokens, 1)[0].numpy() + np.float32(plain)

    return make_golden.Models(lm, stepwise, lm, at_once)


def test_examination_names_what_failed(lm, monkeypatch):
    ids = lm.encode(PROMPT)
    tokens = search.decode(lm, ids, 3)[0]

    def result(tokens: list[int] = tokens, **off: float):
        return make_golden.examine(model_and_twin(lm, **off), PROMPT, ids, tokens)

    def shaken(by: float):
        def reruns(lm, ids, tokens, count, *, bf16, seed=0):
            logits = search.decode(lm, ids, len(tokens))[1].clone()
            logits[1, tokens[1]] -= by * search.leads(logits, tokens)[1]
            yield logits[None]

        return reruns

    assert result([*tokens[:-1], (tokens[-1] + 1) % 2048]) == "batch"
    assert result(usual=2.0) == "twin tokens"  # the lowest logit is the highest
    assert result(plain=0.002) == "twin logits"
    for by, outcome in ((1.1, "token"), (0.6, "margin")):
        monkeypatch.setattr(search, "reruns", shaken(by))
        assert result() == outcome
    monkeypatch.setattr(search, "reruns", shaken(0.0))
    found = result(plain=0.0005)
    assert isinstance(found, make_golden.Found)
    assert found.steadiness > 2 and found.moved == 0 and 0.0004 < found.twin < 0.0006
    assert found.tokens == tokens and found.text == lm.tokenizer.decode(tokens)


@pytest.fixture
def easy(monkeypatch, lm):
    """Make a random model pass: no floor, no rules, no reruns, a twin that costs nothing."""
    monkeypatch.setattr(make_golden, "FLOOR", 0.0)
    monkeypatch.setattr(make_golden, "BATCH", 2)
    monkeypatch.setattr(make_golden, "NOISE_RUNS", 0)
    monkeypatch.setattr(make_golden, "BF16_RUNS", 0)
    monkeypatch.setattr(make_golden, "SIZES", {"short": (4, 6), "medium": (7, 9), "long": (12, 14)})
    seen: dict[tuple[int, ...], np.ndarray] = {}
    decode, teacher_forced = search.decode, search.teacher_forced

    def remember(lm, ids, count):
        tokens, logits = decode(lm, ids, count)
        seen[*ids, *tokens] = logits.numpy()
        return tokens, logits

    def remember_plain(lm, ids, tokens, rows):
        logits = teacher_forced(lm, ids, tokens, rows)
        seen[-1, *ids, *tokens] = logits[0].numpy()
        return logits

    monkeypatch.setattr(search, "decode", remember)
    monkeypatch.setattr(search, "teacher_forced", remember_plain)
    monkeypatch.setattr(search, "allowed", lambda lm, tokens: True)
    models = make_golden.Models(
        lm, lambda ids, tokens: seen[*ids, *tokens], lm, lambda i, t: seen[-1, *i, *t]
    )
    monkeypatch.setattr(make_golden.Models, "of", lambda directory: models)
    texts = [("a.py", b"import os\nimport sys\n\n\ndef main(argv):\n    return argv\n" * 4)]
    monkeypatch.setattr(make_golden.corpus, "read_split", lambda split, root: texts)


def test_the_file_written_is_the_file_checked(  # noqa: PLR0913 - fixtures
    easy, lm, directory, tmp_path, monkeypatch, capsys
):
    out = tmp_path / "sub" / "golden.json"
    options = ["--model", str(directory), "--out", str(out), "--enough", "1"]
    options += ["--windows", "24", "--tokens", "32"]
    monkeypatch.setattr(sys, "argv", ["make_golden.py", *options])
    assert make_golden.main() == 0
    header, prompts = golden.read(out)
    assert header["model_hash"] == target_hash(directory)
    assert header["command"].startswith("python tools/make_golden.py --model")
    assert [p.name for p in prompts] == ["short", "medium", "long"]
    for prompt in prompts:
        assert golden.compare(lm, prompt) == []
        assert list(prompt.prompt_ids) == lm.encode(prompt.prompt)
        assert len(prompt.tokens) == len(prompt.margins) == 32
        assert set(prompt.logits) == {0, 1, 10, 20, 31}
        assert all(len(row) == 5 for row in prompt.logits.values())
        assert prompt.logits[31][prompt.tokens[31]] == max(prompt.logits[31].values())
    for raw, prompt in zip(json.loads(out.read_text())["prompts"], prompts, strict=True):
        assert raw["text"] == lm.tokenizer.decode(prompt.tokens)
        assert raw["plain_logits"].keys() == raw["logits"].keys() and raw["twin_difference"] == 0
    assert "smallest margin" in capsys.readouterr().out


def test_too_few_tokens_are_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["make_golden.py", "--tokens", "8"])
    assert make_golden.corpus.exit_code(make_golden.main) == 2
    assert "at least 32 new tokens" in capsys.readouterr().err


def test_finding_nothing_is_one_clear_error(easy, directory, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(make_golden, "FLOOR", 1e9)
    options = ["--model", str(directory), "--out", str(tmp_path / "x"), "--windows", "8"]
    monkeypatch.setattr(sys, "argv", ["make_golden.py", *options])
    assert make_golden.corpus.exit_code(make_golden.main) == 2
    assert "no short prompt among 8 windows" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
