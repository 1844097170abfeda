"""The shipped model says its golden tokens when simulated kernels compute its products."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from dslearn import backend, ops
from dslearn.engine import golden, load

COUNT = 8


def test_the_first_tokens_of_the_shortest_prompt():
    shortest = min(golden.read()[1], key=lambda prompt: len(prompt.prompt_ids))
    with backend.use("sim"), ops.collect() as taken:
        problems = golden.compare(load("tiny"), shortest, COUNT)
    assert not problems, "\n".join(problems)
    kernels = taken.counts()
    products = {"fp8_folded", "widened_active", "plain_linear"}
    assert products | {"swiglu", "rmsnorm", "hc_mixes", "engram_gate"} <= set(kernels)
    assert all(set(paths) == {"kernel"} for paths in kernels.values()), kernels


@pytest.mark.slow
def test_every_golden_token():
    done = subprocess.run(
        [sys.executable, "-m", "dslearn", "golden", "--check"],
        env=os.environ | {backend.VARIABLE: "sim"},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("equal to the golden ones") == 3, done.stdout
    assert done.stdout.count("backend sim") == 3
