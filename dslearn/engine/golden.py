"""Golden tokens: what `tiny` must say, byte for byte, on every machine and every path.

The committed file holds three prompts with their greedy tokens, the margin of each step (top
logit minus the second), the logits of chosen steps, the hash of the weights and the command that
made it. `tools/make_golden.py` wrote it; it says how the prompts were chosen.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dslearn import backend
from dslearn.checkpoint.hashing import target_hash
from dslearn.engine.lm import LM, load, model_directory
from dslearn.engine.text import TextStream
from dslearn.errors import CheckpointError

FILE = "data/golden/tiny.json"
LOGIT_TOLERANCE = 0.1  # at least: one activation that rounds the other way moves a logit so far


@dataclass(frozen=True)
class Golden:
    """One prompt: its ids, greedy tokens, per-step margins, and logits of some steps.

    `plain_logits` are those of the same tokens with activations and caches not quantised: nothing
    can round the other way there, so they hold to 1e-3. The quantised ones hold to
    `logit_tolerance`, twice what rerunning with noise moved them.
    """

    name: str
    prompt: str
    prompt_ids: tuple[int, ...]
    tokens: tuple[int, ...]
    margins: tuple[float, ...]
    logits: dict[int, dict[int, float]]  # step -> token id -> logit
    plain_logits: dict[int, dict[int, float]] = field(default_factory=dict)
    logit_tolerance: float = LOGIT_TOLERANCE


def read(file: Path | None = None) -> tuple[dict[str, Any], list[Golden]]:
    """The committed file (or `file`): its header and the prompts."""
    path = file or resources.files("dslearn").joinpath(FILE)
    raw = json.loads(path.read_text(encoding="utf-8"))
    prompts = [
        Golden(
            entry["name"],
            entry["prompt"],
            tuple(entry["prompt_ids"]),
            tuple(entry["tokens"]),
            tuple(entry["margins"]),
            _by_step(entry["logits"]),
            _by_step(entry["plain_logits"]),
            entry["logit_tolerance"],
        )
        for entry in raw.pop("prompts")
    ]
    return raw, prompts


def _by_step(raw: dict[str, dict[str, float]]) -> dict[int, dict[int, float]]:
    return {int(s): {int(i): v for i, v in row.items()} for s, row in raw.items()}


def compare(
    model: LM, golden: Golden, count: int | None = None, *, show: bool = False
) -> list[str]:
    """Decode greedily beside `golden`; -> one line per disagreement, empty when all is equal.

    Args:
        model: what to check, under whatever numerics, backend or mode it runs.
        count: steps to check; None takes all.
        show: print the text as it comes.
    """
    problems: list[str] = []
    ids, tokens = list(golden.prompt_ids), golden.tokens[:count]
    state = model.new_state(1, len(ids) + len(tokens))
    stream = TextStream(model.tokenizer) if show and model.tokenizer else None
    if stream:
        sys.stdout.write(golden.prompt)
    logits = model.forward([ids], state)
    for step, expected in enumerate(tokens):
        row = logits[0, -1]
        got = int(np.argmax(row.numpy()))
        if got != expected:
            problems.append(
                f"{golden.name}, step {step}: token {got}, golden {expected} "
                f"(golden margin {golden.margins[step]:.3f}, "
                f"here {float(row[expected] - row[got]):.3f})"
            )
            break  # whatever follows continues another text
        problems += _logit_problems(golden, step, row)
        if stream:
            sys.stdout.write(stream.push(got))
            sys.stdout.flush()
        if step + 1 < len(tokens):
            logits = model.forward([[got]], state)
    if stream:
        sys.stdout.write(stream.flush() + "\n")
    return problems


def _logit_problems(golden: Golden, step: int, row: torch.Tensor) -> list[str]:
    wanted = golden.logits.get(step, {})
    return [
        f"{golden.name}, step {step}: logit of token {i} is {float(row[i]):.4f}, golden {v:.4f}"
        for i, v in wanted.items()
        if abs(float(row[i]) - v) > golden.logit_tolerance
    ]


def run(show: bool = False) -> bool:
    """Check the shipped model against the committed file; print the outcome; -> all equal.

    Args:
        show: stream the text of each prompt as it is decoded.

    Raises:
        CheckpointError: the golden file belongs to other weights.
    """
    header, prompts = read()
    digest = target_hash(model_directory("tiny"))
    if digest != header["model_hash"]:
        raise CheckpointError(
            f"the golden file is for weights {header['model_hash'][:16]}, the shipped model is "
            f"{digest[:16]}: run tools/make_golden.py after changing the weights"
        )
    model = load("tiny")
    problems: list[str] = []
    name = backend.current().name
    where = "" if name == "cpu" else f", backend {name}"
    for golden in prompts:
        found = compare(model, golden, show=show)
        problems += found
        state = "equal" if not found else "DIFFERENT"
        print(
            f"{golden.name}: {len(golden.prompt_ids)} prompt + {len(golden.tokens)} new tokens, "
            f"{state} to the golden ones (smallest margin {min(golden.margins):.3f}{where})"
        )
    for line in problems:
        print(line)
    return not problems
