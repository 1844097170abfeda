"""The shipped tokenizer: ids, exact round trips, pieces; and its training on a small text."""

from __future__ import annotations

import importlib
import json
import random
import string
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from dslearn.errors import UsageError

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
made = importlib.import_module("train_tokenizer")

TINY = Tokenizer.from_file(str(made.OUT / "tokenizer.json"))
SPECIAL = {
    0: "<｜begin▁of▁sentence｜>",
    1: "<｜end▁of▁sentence｜>",
    2: "<｜▁pad▁｜>",
    2041: "<｜System｜>",
    2042: "<｜User｜>",
    2043: "<｜Assistant｜>",
    2044: "<think>",
    2045: "</think>",
    2046: "<｜image｜>",
    2047: "<｜noise｜>",
}


def _round_trip(text: str) -> str:
    ids = TINY.encode(text, add_special_tokens=False).ids
    return TINY.decode(ids, skip_special_tokens=False)


def test_vocabulary_is_2048_ids():
    assert TINY.get_vocab_size() == 2048
    assert sorted(TINY.get_vocab().values()) == list(range(2048))


@pytest.mark.parametrize(("token_id", "text"), SPECIAL.items())
def test_special_ids(token_id, text):
    assert TINY.token_to_id(text) == token_id
    assert TINY.encode(f"a{text}b").ids[1:-1] == [token_id]
    assert TINY.decode([token_id], skip_special_tokens=True) == ""


def test_special_spelling_uses_fullwidth_bar_and_lower_block():
    assert SPECIAL[0].encode("unicode_escape") == (b"<\\uff5cbegin\\u2581of\\u2581sentence\\uff5c>")


def test_every_byte_has_an_id():
    assert sorted(len(TINY.encode(c).ids) for c in "aé漢😀") == [1, 2, 3, 4]
    assert TINY.decode(TINY.encode("".join(map(chr, range(256)))).ids) == "".join(
        map(chr, range(256))
    )


def test_nothing_is_added_on_its_own():
    assert TINY.encode("x", add_special_tokens=True).ids == TINY.encode("x").ids
    assert TINY.encode("").ids == []


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back(text):
    assert _round_trip(text) == text


@given(st.text(alphabet=" \t\r\n.:()'\"#_a1é", max_size=80))
def test_any_layout_comes_back(text):
    assert _round_trip(text) == text


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("1234", ["123", "4"]),
        ("\n        self", ["ĊĠĠĠĠĠĠĠĠ", "self"]),
        ("\n\n", ["ĊĊ"]),
        ("):\n        return", ["):ĊĠĠĠĠĠĠĠĠ", "return"]),
        ("x   y", ["x", "ĠĠ", "Ġy"]),
    ],
)
def test_pieces(text, tokens):
    assert TINY.encode(text).tokens == tokens


@given(st.text(alphabet="0123456789", min_size=1, max_size=12))
def test_digits_in_groups_of_at_most_three(digits):
    tokens = TINY.encode(digits).tokens
    assert all(len(token) <= 3 for token in tokens)


def test_config_beside_it_names_the_same_tokens():
    config = json.loads((made.OUT / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert [config[k] for k in ("bos_token", "eos_token", "pad_token")] == [
        SPECIAL[0],
        SPECIAL[1],
        SPECIAL[2],
    ]


def _text() -> list[str]:
    rng = random.Random(0)
    words = ["".join(rng.choices(string.ascii_lowercase, k=5)) for _ in range(200)]
    return [" ".join(rng.choices(words, k=50)) for _ in range(20)]


def test_training_twice_gives_the_same_bytes():
    first, second = (made.train(_text(), vocab_size=400) for _ in range(2))
    assert first.to_str() == second.to_str()
    assert first.get_vocab_size() == 400
    assert first.token_to_id("<｜noise｜>") == 399


def test_bytes_per_token_counts_bytes():
    tokenizer = made.train(_text(), vocab_size=400)
    assert made.bytes_per_token(tokenizer, ["漢"]) == 1.0


def test_too_little_text_is_refused():
    with pytest.raises(UsageError, match="training gave 270 ids, 400 are asked for"):
        made.train(["ab abc abcd"], vocab_size=400)
