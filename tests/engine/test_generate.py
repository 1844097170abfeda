"""`LM.generate` on a random checkpoint: streaming, stops, limits, the end token, and refusals."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from dslearn import Numerics
from dslearn.engine import load
from dslearn.engine.lm import PREFILL_CHUNK
from dslearn.engine.sampler import Sampler, Sampling
from dslearn.errors import CheckpointError, StateError, UsageError
from tests.engine.engine_model import save_random_lm

PROMPT = "def main("


def greedy_by_hand(lm, prompt: str, count: int) -> list[int]:
    """Without a state: every step scores the whole text again."""
    ids = lm.encode(prompt)
    for _ in range(count):
        ids.append(int(lm.forward([ids])[0, -1].argmax()))
    return ids[-count:]


@pytest.fixture(scope="module")
def exact(random_directory):
    """Row-invariant: chunks and steps give the bytes of one call."""
    return load(random_directory, Numerics(row_invariant=True))


def test_streamed_text_is_the_text_of_the_greedy_tokens(exact):
    ids = list(exact.tokens(exact.encode(PROMPT), 8))
    assert ids == greedy_by_hand(exact, PROMPT, 8)
    pieces = list(exact.generate(PROMPT, max_new_tokens=8))
    assert "".join(pieces) == exact.tokenizer.decode(ids)
    assert all(pieces) and len(pieces) > 1


def test_a_prompt_longer_than_a_prefill_chunk(exact, monkeypatch):
    ids = exact.encode("import os\nclass Name:\n    pass\n")
    whole = list(exact.tokens(ids, 3))
    assert PREFILL_CHUNK > len(ids) > 7
    monkeypatch.setattr("dslearn.engine.lm.PREFILL_CHUNK", 7)
    assert list(exact.tokens(ids, 3)) == whole


@pytest.mark.parametrize("count", [1, 2, 5])
def test_max_new_tokens_is_exact(lm, count):
    assert len(list(lm.tokens(lm.encode(PROMPT), count))) == count


def test_generation_fills_the_last_position(lm):
    limit = lm.config.max_position_embeddings
    ids = (lm.encode(PROMPT) * limit)[: limit - 2]
    assert len(list(lm.tokens(ids, 2))) == 2


def test_a_stop_string_cuts_wherever_it_falls(lm):
    whole = "".join(lm.generate(PROMPT, max_new_tokens=10))
    assert len(whole) > 8
    for start in (0, 3, 4, 5):
        stop = whole[start : start + 3]
        cut = "".join(lm.generate(PROMPT, max_new_tokens=10, stop=[stop, "never there"]))
        assert cut == whole.partition(stop)[0]


def test_a_stop_that_never_comes_changes_nothing(lm):
    whole = "".join(lm.generate(PROMPT, max_new_tokens=8))
    assert "".join(lm.generate(PROMPT, max_new_tokens=8, stop=[whole + "x"])) == whole


def test_the_end_token_ends_the_text_and_is_not_shown(lm, random_directory, tmp_path):
    tokens = list(lm.tokens(lm.encode(PROMPT), 6))
    end = next(i for i in range(1, 6) if tokens[i] not in tokens[:i])
    shutil.copytree(random_directory, tmp_path / "ends")
    config = tmp_path / "ends" / "config.json"
    raw = json.loads(config.read_text())
    config.write_text(json.dumps({**raw, "eos_token_id": tokens[end]}))
    short = load(tmp_path / "ends")
    assert list(short.tokens(short.encode(PROMPT), 6)) == tokens[:end]
    assert "".join(short.generate(PROMPT, 6)) == lm.tokenizer.decode(tokens[:end])


def test_sampling_repeats_with_its_seed(lm):
    def text(seed: int, temperature: float = 1.5) -> str:
        return "".join(lm.generate(PROMPT, 5, temperature, top_p=0.95, seed=seed))

    first = text(1)
    assert text(1) == first
    assert {text(2), text(3)} != {first}
    assert text(1, 1e-6) == "".join(lm.generate(PROMPT, 5)), "cold is greedy"
    sampler = Sampler(Sampling(1.5, 0.95, seed=1))
    assert first == lm.tokenizer.decode(list(lm.tokens(lm.encode(PROMPT), 5, sampler)))


def test_names_of_special_tokens_in_a_prompt_stay_text(lm):
    special = lm.tokenizer.id_to_token(lm.config.eos_token_id)
    ids = lm.encode(f"x{special}y")
    assert ids[0] == lm.config.bos_token_id
    assert not {0, 1, 2, 2046, 2047} & set(ids[1:])
    assert lm.tokenizer.decode(ids[1:]) == f"x{special}y"


@pytest.mark.parametrize(
    "prompt, options, words",
    [
        ("", {}, "the prompt is empty"),
        ("x", {"max_new_tokens": 0}, "max_new_tokens=0"),
        ("x", {"max_new_tokens": 255}, "prompt of 2 tokens plus 255 new ones"),
        ("x " * 300, {}, "this model knows 256 positions"),
        ("x", {"temperature": -1.0}, "temperature=-1.0"),
        ("x", {"top_p": 0.0}, "top_p=0.0"),
        ("x", {"seed": -3}, "seed=-3"),
        ("x", {"stop": ["a", ""]}, "empty stop string"),
    ],
)
def test_wrong_calls_are_refused_at_the_call(lm, prompt, options, words):
    with pytest.raises(UsageError, match=words):
        lm.generate(prompt, **options)


def test_a_checkpoint_without_tokenizer_takes_ids_only(tmp_path):
    bare = save_random_lm(tmp_path / "bare", tokenizer=False, engram_layer_ids=[])
    model = load(bare)
    assert model.forward([[0, 5, 6]]).shape == (1, 3, 2048)
    assert len(list(model.tokens([0, 5, 6], 2))) == 2
    with pytest.raises(CheckpointError, match="no tokenizer.json"):
        model.generate("x")
    with_engram = save_random_lm(tmp_path / "engram", tokenizer=False)
    with pytest.raises(CheckpointError, match="tokenizer.json"):
        load(with_engram)
    with pytest.raises(CheckpointError, match="no such directory"):
        load(tmp_path / "nowhere")


def test_forward_takes_lists_advances_the_state_and_needs_no_gradients(lm):
    state = lm.new_state(batch=2, max_len=8)
    logits = lm.forward([[0, 5, 6], [0, 7, 8]], state)
    assert logits.dtype == torch.float32 and not logits.requires_grad
    assert (state.position, state.max_len) == (3, 8)
    with pytest.raises(StateError, match="max_len=8"):
        lm.forward([[1] * 6, [1] * 6], state)
