"""The table of bits per byte, on a random checkpoint: rows, ratios, and what it refuses."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest
import torch

from dslearn.numerics import Numerics

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
table = importlib.import_module("bits_per_byte")

FILES = [torch.tensor([0, 5, 6, 7, 8, 9, 1]), torch.tensor([0, 5, 1]), torch.tensor([0, 30, 31, 1])]


@pytest.fixture
def run(monkeypatch, directory, capsys):
    """Run the tool on three tiny files of 40 bytes; returns its lines."""
    monkeypatch.setattr(table, "held_out", lambda cache, root, count: (FILES[:count], 40))
    rows = [table.Row("gzip", 2.0), table.Row("n-gram", 1.6)]
    monkeypatch.setattr(table, "baseline_rows", lambda root, count: rows)

    def go(*options: str) -> list[str]:
        command = ["bits_per_byte.py", "--model", str(directory), *options]
        monkeypatch.setattr(sys, "argv", command)
        code = table.corpus.exit_code(table.main)
        out, err = capsys.readouterr()
        return [str(code), *out.splitlines(), *([err] if code else [])]

    return go


def test_every_row_and_both_ratios(run, directory):
    lines = run("--context", "4", "16", "--plain", str(directory))
    bits = {line[15:]: float(line[:13]) for line in lines if re.match(r" +\d+\.\d{4}  ", line)}
    names = list(bits)
    assert lines[0] == "0" and lines[1] == "3 held-out files, 40 bytes"
    assert names[0].endswith("context 4") and names[1].endswith("context 16")
    assert names[2:] == [
        "activations and caches not quantised",
        "full-precision weights",
        "gzip",
        "n-gram",
    ]
    assert bits["full-precision weights"] == bits["activations and caches not quantised"]
    ratio = bits[names[0]] / bits["full-precision weights"]
    assert lines[-3].startswith("quantised over full precision")
    assert float(lines[-3].rsplit(" ", 1)[1]) == pytest.approx(ratio, abs=2e-4)
    best = min(bits[names[0]], bits[names[1]])
    assert float(lines[-1].rsplit(" ", 1)[1]) == pytest.approx(best / 1.6, abs=2e-4)


def test_bits_are_the_nats_of_every_prediction(directory, lm):
    row = table.measure("x", directory, Numerics(), FILES, 40, context=16)
    nats = 0.0
    for ids in FILES:
        logp = lm.forward(ids[None, :-1])[0].log_softmax(-1)
        nats -= float(logp.gather(-1, ids[1:, None]).sum())
    assert row.nats == pytest.approx(nats, rel=1e-2)  # a batch may round an activation otherwise
    assert row.bits == pytest.approx(row.nats / 0.693147 / 40, rel=1e-5)


def test_without_baselines_there_is_no_second_ratio(run):
    lines = run("--no-baselines", "--files", "1")
    assert lines[1].startswith("1 held-out files") and not any("baseline" in line for line in lines)


def test_a_context_too_small_is_refused(run):
    code, message = run("--context", "512", "1")
    assert code == "2" and "--context 1" in message
