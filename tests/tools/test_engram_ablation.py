"""Engram's tables taken away: what is changed, that it is put back, and what the table shows."""

from __future__ import annotations

import importlib
import math
import re
import sys
from pathlib import Path

import pytest
import torch

from dslearn.model.loading import load_model

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
ablation = importlib.import_module("engram_ablation")

FILES = [torch.tensor([0, 5, 6, 7, 8, 9, 1]), torch.tensor([0, 30, 31, 1])]
NAMES = ["as shipped", "all tables zeroed", "all tables moved by one row"]


@pytest.fixture
def model(directory):
    return load_model(directory)


def test_tables_are_the_stored_ones(model):
    (name,) = ablation.tables(model)
    assert name == "layers.1"
    assert ablation.tables(model)[name].dtype == torch.uint8, "codes, as the checkpoint has them"


def test_each_table_alone_only_if_there_are_two():
    names = [name for name, _, _ in ablation.cases(["layers.1", "layers.4"])]
    zeroed = ["table of layers.1 zeroed", "table of layers.4 zeroed"]
    assert names == [NAMES[0], *zeroed, *NAMES[1:]]
    assert [name for name, _, _ in ablation.cases(["layers.1"])] == NAMES


def test_a_zeroed_table_is_no_engram_and_everything_is_put_back(model):
    before = {name: t.clone() for name, t in ablation.tables(model).items()}
    nats = dict(ablation.measure(model, FILES, 16))
    assert list(nats) == NAMES and len(set(nats.values())) == 3
    for name, table in ablation.tables(model).items():
        assert torch.equal(table, before[name])
    trace: dict = {}
    ids = FILES[0][None, :-1]
    ablation.tables(model)["layers.1"].zero_()
    with torch.inference_mode():
        logp = model(ids, trace=trace).log_softmax(-1)[0]
        other = model(FILES[1][None, :-1]).log_softmax(-1)[0]
    by_hand = -float(logp.gather(1, FILES[0][1:, None]).sum())
    by_hand -= float(other.gather(1, FILES[1][1:, None]).sum())
    assert nats["all tables zeroed"] == pytest.approx(by_hand, rel=1e-5)
    streams = [layer["streams"][0] for layer in trace["layers"][:2]]
    assert not torch.equal(*streams), "layer 0 still writes"


def test_the_table_has_a_line_per_case(monkeypatch, directory, capsys):
    monkeypatch.setattr(ablation, "held_out", lambda cache, root, count: (FILES[:count], 40))
    monkeypatch.setattr(sys, "argv", ["engram_ablation.py", "--model", str(directory)])
    assert ablation.corpus.exit_code(ablation.main) == 0
    head, _, title, *lines = capsys.readouterr().out.splitlines()
    assert head == "2 held-out files, 40 bytes" and title.split()[-1] == "tables"
    found = [re.fullmatch(r" +(\d+\.\d{4})  ( *-?\d+%)  (.+)", line) for line in lines]
    assert [match[3] for match in found if match] == NAMES
    model = load_model(directory)
    bits = next(nats for _, nats in ablation.measure(model, FILES, 512)) / math.log(2) / 40
    assert float(found[0][1]) == pytest.approx(bits, abs=1e-4) and found[0][2].strip() == "0%"


@pytest.mark.parametrize(
    ("options", "words"), [(["--context", "1"], "--context 1: windows overlap by half")]
)
def test_wrong_options_are_refused(monkeypatch, capsys, options, words):
    monkeypatch.setattr(sys, "argv", ["engram_ablation.py", *options])
    assert ablation.corpus.exit_code(ablation.main) != 0
    assert words in capsys.readouterr().err
