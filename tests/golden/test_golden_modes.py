"""The shipped model says its golden tokens as graphs: the command, in each mode."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from dslearn import backend, regions
from dslearn.engine import golden, load

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
