"""The shipped model says its golden tokens as graphs: the command, in each mode."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from dslearn import backend, regions
from dslearn.engine import golden, load
from dslearn.engine.batch import together
from dslearn.regions.graph_runner import GraphRunner

COUNT = 4


def check_command(mode: str, cache: str) -> None:
    """`dslearn golden --check` in a process of its own finds nothing different."""
    done = subprocess.run(
        [sys.executable, "-m", "dslearn", "golden", "--check"],
        env=os.environ | {"DSLEARN_GRAPH_MODE": mode, "DSLEARN_CACHE_DIR": cache},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("equal to the golden ones") == 3, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["regions", "whole"])
def test_every_golden_token(mode, tmp_path):
    check_command(mode, str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["regions", "whole"])
def test_the_first_tokens_on_simulated_kernels(mode):
    shortest = min(golden.read()[1], key=lambda prompt: len(prompt.prompt_ids))
    with backend.use("sim"), regions.use(mode):
        problems = golden.compare(load("tiny"), shortest, COUNT)
    assert not problems, "\n".join(problems)


@pytest.mark.slow
def test_golden_tokens_at_every_batch_size():
    lm, prompts, largest = load("tiny"), golden.read()[1], 9
    runner = GraphRunner(lm.model, largest, 256)
    runner.capture()
    regions.warm()
    try:
        for size in range(1, largest + 1):
            chosen = [prompts[i % len(prompts)] for i in range(size)]
            ids = [prompt.prompt_ids for prompt in chosen]
            for number, tokens in together(lm, runner, ids, len(chosen[0].tokens)):
                assert tokens == list(chosen[number].tokens), f"batch of {size}, row {number}"
            assert not runner.state.positions.any()
    finally:
        regions.forget()
