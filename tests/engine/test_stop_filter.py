"""Stop strings: the cut does not depend on how the text was split into pieces."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dslearn.engine.text import StopFilter
from dslearn.errors import UsageError


def run(pieces: list[str], stops: list[str]) -> tuple[str, bool, list[str]]:
    """-> shown text, whether it stopped, and what was shown piece by piece."""
    stop = StopFilter(stops)
    shown = []
    for piece in pieces:
        shown.append(stop.push(piece))
        if stop.stopped:
            break
    shown.append(stop.flush())
    return "".join(shown), stop.stopped, shown


def cut(text: str, stops: list[str]) -> str:
    """`text` up to the stop that begins first."""
    return min((text.partition(stop)[0] for stop in stops), key=len, default=text)


@st.composite
def split_text(draw: st.DrawFn) -> tuple[list[str], list[str]]:
    text = draw(st.text(alphabet="abc\n", max_size=30))
    places = draw(st.lists(st.integers(0, len(text)), max_size=8))
    edges = [0, *sorted(places), len(text)]
    pieces = [text[a:b] for a, b in zip(edges, edges[1:], strict=False)]
    stops = draw(st.lists(st.text(alphabet="abc\n", min_size=1, max_size=4), max_size=4))
    return pieces, stops


@given(split_text())
@example((["abcd"], ["abcdef", "cd"]))
@example((["ab", "cd"], ["abcdef", "cd"]))
@example((["abc", "de", "f"], ["abcdef", "cd"]))
@example((["aa", "ab"], ["aab"]))
def test_any_split_gives_the_text_before_the_first_stop(case):
    pieces, stops = case
    text = "".join(pieces)
    shown, stopped, _ = run(pieces, stops)
    assert shown == cut(text, stops)
    assert stopped == any(stop in text for stop in stops)


def test_a_stop_across_three_pieces_is_never_shown():
    shown, stopped, steps = run(["one ST", "O", "P two"], ["STOP"])
    assert (shown, stopped, steps) == ("one ", True, ["one ", "", "", ""])


def test_a_start_that_leads_nowhere_is_shown_later():
    _, stopped, steps = run(["one ST", "ART", " ST"], ["STOP"])
    assert (stopped, steps) == (False, ["one ", "START", " ", "ST"])


def test_only_what_may_begin_a_stop_is_held_back():
    stop = StopFilter(["\n\n", "###"])
    assert stop.push("x = 1\n") == "x = 1"
    assert stop.push("y = 2 ##") == "\ny = 2 "
    assert stop.push("!") == "##!"
    assert not stop.stopped


def test_the_stop_that_begins_first_wins_even_if_it_ends_later():
    assert run(["ab", "cd", "ef"], ["abcdef", "cd"])[0] == ""
    assert run(["ab", "cd", "xx"], ["abcdef", "cd"])[0] == "ab"
    assert run(["ab", "cd"], ["abcdef", "cd"])[0] == "ab", "the text ended before the longer one"


def test_after_a_stop_nothing_more_comes():
    stop = StopFilter(["."])
    assert stop.push("end. more") == "end" and stop.stopped
    assert stop.push("again") == "" and stop.flush() == ""


def test_without_stops_text_passes_through():
    assert run(["a", "", "b"], []) == ("ab", False, ["a", "", "b", ""])


def test_one_string_is_one_stop():
    stop = StopFilter("ab")
    assert stop.push("a b ab c") == "a b " and stop.stopped


@pytest.mark.parametrize("stops", [[""], ["x", ""], ""])
def test_an_empty_stop_is_refused(stops):
    if stops == "":
        stops = ("",)
    with pytest.raises(UsageError, match="at least one character"):
        StopFilter(stops)
