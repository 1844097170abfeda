"""The golden check itself: equal is silent, one wrong token or logit is named, hashes guard."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dslearn.checkpoint.hashing import target_hash
from dslearn.engine import golden
from dslearn.engine.golden import Golden, compare
from dslearn.errors import CheckpointError

STEPS = 6


@pytest.fixture(scope="module")
def right(lm) -> Golden:
    """What the random model says, written down the way a golden file does."""
    ids = lm.encode("import sys\n")
    state = lm.new_state(1, len(ids) + STEPS)
    tokens, margins, logits = [], [], {}
    row = lm.forward([ids], state)[0, -1]
    for step in range(STEPS):
        top = row.topk(2)
        tokens.append(int(top.indices[0]))
        margins.append(float(top.values[0] - top.values[1]))
        logits[step] = {int(i): float(row[i]) for i in top.indices}
        row = lm.forward([[tokens[-1]]], state)[0, -1]
    given = (tuple(ids), tuple(tokens), tuple(margins), logits, {0: {tokens[0]: 1.5}})
    return Golden("short", "import sys\n", *given)


def test_an_equal_model_gives_no_problem(lm, right):
    assert compare(lm, right) == []
    assert compare(lm, right, 2) == []


def test_showing_prints_prompt_and_text(lm, right, capsys):
    assert compare(lm, right, show=True) == []
    assert capsys.readouterr().out == right.prompt + lm.tokenizer.decode(right.tokens) + "\n"


def test_a_changed_token_is_named_and_ends_the_comparison(lm, right):
    wrong = (right.tokens[3] + 1) % 2048
    changed = replace(right, tokens=(*right.tokens[:3], wrong, *right.tokens[4:]))
    problems = compare(lm, changed)
    assert len(problems) == 1
    assert f"short, step 3: token {right.tokens[3]}, golden {wrong}" in problems[0]
    assert f"golden margin {right.margins[3]:.3f}, here -" in problems[0]
    assert compare(lm, changed, 3) == [], "the wrong step was not asked for"


def test_a_changed_logit_is_named_and_the_rest_still_checked(lm, right):
    token = right.tokens[1]
    near, far = (dict(right.logits[1]) for _ in range(2))
    near[token] += golden.LOGIT_TOLERANCE * 0.9
    far[token] += golden.LOGIT_TOLERANCE * 1.1
    assert compare(lm, replace(right, logits={**right.logits, 1: near})) == []
    wider = replace(right, logits={**right.logits, 1: far}, logit_tolerance=0.2)
    assert compare(lm, wider) == []
    problems = compare(lm, replace(right, logits={**right.logits, 1: far, 4: far}))
    assert problems[0].startswith(f"short, step 1: logit of token {token} is ")
    assert any(problem.startswith("short, step 4: logit") for problem in problems)


def saved(path, header: dict, *prompts: Golden):
    entries = [
        {
            "name": g.name,
            "prompt": g.prompt,
            "prompt_ids": g.prompt_ids,
            "tokens": g.tokens,
            "margins": g.margins,
            "logits": g.logits,
            "plain_logits": g.plain_logits,
            "logit_tolerance": g.logit_tolerance,
        }
        for g in prompts
    ]
    path.write_text(json.dumps({**header, "prompts": entries}), encoding="utf-8")
    return path


def test_a_file_comes_back_as_it_was(tmp_path, right):
    file = saved(tmp_path / "golden.json", {"model_hash": "ab", "command": "x"}, right, right)
    header, prompts = golden.read(file)
    assert header == {"model_hash": "ab", "command": "x"}
    assert prompts == [right, right]


@pytest.fixture
def shipped(monkeypatch, tmp_path, lm, random_directory):
    """Pretend that the random model is the one that ships; returns a setter of its golden file."""
    monkeypatch.setattr(golden, "model_directory", lambda name: random_directory)
    monkeypatch.setattr(golden, "load", lambda name: lm)

    def use(*prompts: Golden, model_hash: str | None = None) -> None:
        digest = model_hash or target_hash(random_directory)
        file = saved(tmp_path / "golden.json", {"model_hash": digest}, *prompts)
        monkeypatch.setattr(golden, "FILE", str(file))

    return use


def test_run_says_equal(shipped, right, capsys):
    shipped(right)
    assert golden.run()
    line = capsys.readouterr().out
    assert line.startswith(f"short: {len(right.prompt_ids)} prompt + {STEPS} new tokens, equal")
    assert f"{min(right.margins):.3f}" in line


def test_run_says_different_and_what(shipped, right, capsys):
    shipped(right, replace(right, name="other", tokens=(7, *right.tokens[1:])))
    assert not golden.run()
    out = capsys.readouterr().out
    assert "short: " in out and "other: " in out and "DIFFERENT" in out
    assert f"other, step 0: token {right.tokens[0]}, golden 7" in out


def test_other_weights_are_refused(shipped, right):
    shipped(right, model_hash="0" * 64)
    with pytest.raises(CheckpointError, match="for weights 0000000000000000.*make_golden"):
        golden.run()
