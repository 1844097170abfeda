"""Prompts that share a runner: each gets the tokens that it has alone, in a lane that is free."""

from __future__ import annotations

import json

import pytest
import torch

from dslearn.cli import main
from dslearn.engine import LM
from dslearn.engine.batch import together
from dslearn.engine.sampler import Sampler, Sampling
from dslearn.errors import UsageError
from tests.support.models import EXACT, build, prompt, small_config

RAW = small_config()
COUNT, ROOM = 6, 40


class Eager:
    """What `together` needs of a graph runner, without graphs; `sizes` of the batches it ran."""

    def __init__(self, model, lanes):
        self.model, self.max_num_seqs = model, lanes
        self.state, self.sizes = model.new_state(lanes, ROOM), []

    def prefill(self, ids, lane):
        assert self.state.positions[lane] == 0, "the lane is free"
        return self.model.forward(ids[None], self.state, lanes=torch.tensor([lane]))[0, -1]

    def replay(self, ids, lanes):
        self.sizes.append(len(ids))
        return self.model.forward(ids[:, None], self.state, lanes=lanes)[:, 0]

    def release(self, lane):
        self.state.clear(lane)


@pytest.fixture(scope="module")
def lm():
    return LM(build(RAW, EXACT), None)


def prompts(count):
    return [prompt(RAW, 4 + 7 * seed % 19, seed)[0].tolist() for seed in range(count)]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8, 0.9, seed=3)])
@pytest.mark.parametrize("lanes", [1, 3, 9])
def test_as_alone_whatever_the_number_of_lanes(lm, lanes, sampling):
    runner, given = Eager(lm.model, lanes), prompts(7)
    got = dict(together(lm, runner, given, COUNT, sampling))
    assert sorted(got) == list(range(7))
    for number, ids in enumerate(given):
        assert got[number] == list(lm.tokens(ids, COUNT, Sampler(sampling))), number
    assert max(runner.sizes) <= lanes and not runner.state.positions.any()


def test_a_lane_is_taken_as_soon_as_it_is_free(lm):
    runner = Eager(lm.model, 2)
    list(together(lm, runner, prompts(4), COUNT))
    assert runner.sizes == [2] * (2 * (COUNT - 1)), "two and two, side by side"


@pytest.mark.parametrize("ids", [[], [5] * (ROOM - COUNT + 1)])
def test_prompts_that_do_not_fit(lm, ids):
    with pytest.raises(UsageError, match=r"prompt 2 of \d+ tokens plus 6 new ones.*--max-len"):
        list(together(lm, Eager(lm.model, 2), [[1], ids], COUNT))


def test_the_plan_is_printed_without_weights(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(RAW))
    command = ["generate", "--model", str(tmp_path), "--max-num-seqs", "9", "--plan"]
    assert main([*command, "--max-len", "64"]) == 0
    out = capsys.readouterr().out
    assert "9 lanes of 64 tokens and a scratch lane" in out
    rows = [line.split() for line in out.splitlines()[2:-1]]
    assert [row[:2] for row in rows] == [
        ["1", "64"], ["9", "1"], ["8", "1"], ["4", "1"], ["2", "1"], ["1", "1"],
    ]  # fmt: skip
    assert main(["generate", "x", "--plan"]) == 2
    assert "--plan needs --max-num-seqs: --plan --max-num-seqs 8" in capsys.readouterr().err
    for traced in ([*command, "--trace"], ["generate", "x", "--max-num-seqs", "2", "--trace"]):
        assert main(traced) == 2, "no option is ignored"
        streams = capsys.readouterr()
        assert not streams.out and "leave --trace or --max-num-seqs out" in streams.err
    assert main([*command, "--max-len", "0"]) == 2
    assert not capsys.readouterr().out, "an error alone"
