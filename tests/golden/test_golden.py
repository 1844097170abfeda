"""The shipped model says its golden tokens: every path, and a second implementation."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dslearn import Numerics
from dslearn.checkpoint.hashing import target_hash
from dslearn.checkpoint.shards import INDEX
from dslearn.engine import LM, golden, load
from dslearn.engine.golden import Golden, compare
from dslearn.engine.lm import model_directory

sys.path.insert(0, str(Path(__file__).parent))
import numpy_model

TINY = model_directory("tiny")
NAMES = ("short", "medium", "long")
TWIN_TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def lm() -> LM:
    if not (TINY / INDEX).exists():
        pytest.fail(f"{TINY} holds no weights: copy a trained checkpoint there, see docs/tiny.md")
    return load("tiny")


@pytest.fixture(scope="module")
def prompts() -> dict[str, Golden]:
    if not (TINY.parents[1] / golden.FILE).exists():
        pytest.fail(f"{golden.FILE} is missing: python tools/make_golden.py writes it")
    return {prompt.name: prompt for prompt in golden.read()[1]}


class Wrapped:
    """What `compare` needs of a model, fed in another way."""

    tokenizer = None

    def __init__(self, lm: LM, batch: int = 1, chunk: int = 1 << 20) -> None:
        self.lm, self.batch, self.chunk = lm, batch, chunk

    def new_state(self, batch: int, max_len: int):
        return self.lm.new_state(batch * self.batch, max_len)

    def forward(self, ids: list[list[int]], state) -> Tensor:
        rows = torch.tensor(ids * self.batch)
        for part in rows.split(self.chunk, dim=1):
            logits = self.lm.forward(part, state)
        said = logits[:, -1].argmax(-1)
        assert (said == said[0]).all(), f"rows of one batch disagree: {said.tolist()}"
        return logits


def test_the_file_belongs_to_the_shipped_weights(prompts):
    header, _ = golden.read()
    assert header["model_hash"] == target_hash(TINY)
    assert header["command"].startswith("python tools/make_golden.py")
    assert tuple(prompts) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_file_keeps_its_own_rules(lm, prompts, name):
    entry = prompts[name]
    assert list(entry.prompt_ids) == lm.encode(entry.prompt)
    assert len(entry.tokens) == len(entry.margins) >= 32 and min(entry.margins) > 0
    runs = [entry.tokens[i : i + 4] for i in range(len(entry.tokens) - 3)]
    assert max(runs.count(run) for run in runs) <= 2
    assert {0, 1, len(entry.tokens) - 1} <= set(entry.logits)
    for step, row in entry.logits.items():
        assert max(row, key=lambda i: row[i]) == entry.tokens[step]
        best, second = sorted(row.values(), reverse=True)[:2]
        assert best - second == pytest.approx(entry.margins[step], abs=1e-3)


def test_prompts_grow_and_overflow_window_and_top_k(lm, prompts):
    short, medium, long = (len(prompts[name].prompt_ids) for name in NAMES)
    assert short <= 16 < 40 <= medium <= 64 < 150 <= long
    assert medium > lm.config.sliding_window and medium // 2 > lm.config.index_topk


@pytest.mark.parametrize("name", NAMES)
def test_default_path(lm, prompts, name):
    assert compare(lm, prompts[name]) == []


@pytest.mark.parametrize("name", NAMES)
def test_generate_streams_the_golden_text(lm, prompts, name):
    entry = prompts[name]
    text = "".join(lm.generate(entry.prompt, max_new_tokens=len(entry.tokens)))
    assert text == lm.tokenizer.decode(entry.tokens)


@pytest.mark.parametrize("name, chunk", [("short", 1), ("short", 7), ("short", 64), ("long", 64)])
def test_prefill_in_chunks(lm, prompts, name, chunk):
    assert compare(Wrapped(lm, chunk=chunk), prompts[name]) == []


def test_a_batch_of_eight(lm, prompts):
    assert compare(Wrapped(lm, batch=8), prompts["short"]) == []


def test_a_ragged_batch_of_all_three(lm, prompts):
    entries = [prompts[name] for name in NAMES]
    lengths = [len(entry.prompt_ids) for entry in entries]
    width, steps = max(lengths), len(entries[0].tokens)
    ids = [
        [*entry.prompt_ids, *[0] * (width - n)] for entry, n in zip(entries, lengths, strict=True)
    ]
    state = lm.new_state(3, width + steps)
    logits = lm.forward(ids, state, lengths)[torch.arange(3), torch.tensor(lengths) - 1]
    said = [logits.argmax(-1)]
    while len(said) < steps:
        said.append(lm.forward(said[-1][:, None], state)[:, 0].argmax(-1))
    tokens = torch.stack(said, 1).tolist()
    for row, entry in zip(tokens, entries, strict=True):
        assert row == list(entry.tokens), entry.name


def test_row_invariant_arithmetic(prompts):
    assert compare(load("tiny", Numerics(row_invariant=True)), prompts["short"]) == []


def twin_logits(entry: Golden, **options: bool) -> torch.Tensor:
    """What the twin gives for the golden tokens: [S, V]."""
    twin = numpy_model.load(TINY, **options)
    ids, tokens = list(entry.prompt_ids), list(entry.tokens)
    return torch.from_numpy(numpy_model.continuation_logits(twin, ids, tokens))


@pytest.mark.parametrize("name", NAMES)
def test_the_numpy_twin_says_the_golden_tokens(lm, prompts, name):
    assert twin_logits(prompts[name]).argmax(-1).tolist() == list(prompts[name].tokens)


@pytest.mark.parametrize("name", NAMES)
def test_the_numpy_twin_agrees_on_logits_where_nothing_rounds(lm, prompts, name):
    logits = twin_logits(prompts[name], activations=False, caches=False)
    apart = {
        (step, token): abs(float(logits[step, token]) - value)
        for step, row in prompts[name].plain_logits.items()
        for token, value in row.items()
    }
    assert len(apart) >= 20
    worst = max(apart, key=lambda place: apart[place])
    assert apart[worst] < TWIN_TOLERANCE, f"step and token {worst}: {apart[worst]:.1e}"


@pytest.mark.parametrize("name", NAMES)
def test_logits_with_the_quantisers_off(prompts, name):
    entry = prompts[name]
    plain = load("tiny", Numerics(activations=False, caches=False))
    text = torch.tensor([[*entry.prompt_ids, *entry.tokens[:-1]]])
    logits = plain.forward(text)[0, len(entry.prompt_ids) - 1 :]
    for step, row in entry.plain_logits.items():
        for token, value in row.items():
            assert float(logits[step, token]) == pytest.approx(value, abs=TWIN_TOLERANCE)
