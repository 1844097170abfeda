"""Explanations as tables and as pictures: what is printed and drawn is what was explained."""

from __future__ import annotations

import sys
from dataclasses import replace

import matplotlib
import pytest

from dslearn.engine import explain_picture, explain_table
from dslearn.engine.explain import Explanation, Key, Layer, Lookup, explain
from dslearn.errors import UsageError

matplotlib.use("agg")

NEAR = tuple(Key(at, at, (0.02 * at, 0.0)) for at in range(2, 10))  # 0.44, mean of two heads
FAR = (Key(0, 1, (0.3, 0.1), 0), Key(6, 7, (0.1, 0.06), 3))
LOCAL = Layer(0, "local", None, None, 0, NEAR, (), (0.12, 1.0), ((3, 0.9), (1, 0.6)), (), ())
LOOKUPS = (Lookup(8, (11, 12)), Lookup(7, (13, 14)))
REINDEX = Layer(
    5, "reindex", 3, 5, 4, NEAR, FAR, (0.0, 0.56), ((2, 1.5),), LOOKUPS, (0.25, 0.5, 0.75)
)
TEXTS = ("<begin>", *(repr(text) for text in ("a", "$b$", "[red]", ":smile:", "é", *"fgh\n")))
E = Explanation(tuple(range(10)), TEXTS, 7, repr("next"), (LOCAL, REINDEX))


def printed(capsys, explanation: Explanation = E) -> str:
    explain_table.show(explanation)
    return capsys.readouterr().out


def test_the_table_lists_the_heaviest_keys_in_order_and_adds_the_rest(capsys):
    text = printed(capsys)
    assert r"position 9 reads '\n'; the next token is 'next'" in text
    rows = [row.split("│") for row in text.splitlines() if "│" in row]
    window = [row[2].strip() for row in rows]  # of layer 0, then of layer 5
    assert window[0] == "0.440  8 of 8"
    assert window[1].split() == ["0.040", "4", "':smile:'"]
    assert window[6].split() == ["0.090", "9", r"'\n'"] and window[7] == "0.050  2 others"


def test_the_table_says_what_was_selected_and_by_whom(capsys):
    text = printed(capsys)
    assert "entries of 3" in text and "chosen by" not in text, "a layer that chose says nothing"
    assert "0.280  2 of 4" in text and "0.200    0-1 <begin> 'a'" in text
    assert "│ 0.560 │" in text and "  3  0.900" in text, "the sink, an expert"
    shared = replace(E, layers=(replace(REINDEX, chosen_by=3, visible=10),))
    text = printed(capsys, shared)
    assert "chosen by 3" in text and "2 of 10" in text


def test_the_table_of_lookups_names_ngrams(capsys):
    text = printed(capsys)
    assert "0.250 0.500 0.750" in text
    assert r"'h' '\n'" in text and "11 12" in text and r"'g' 'h' '\n'" in text and "13 14" in text
    assert "Engram" not in printed(capsys, replace(E, layers=(LOCAL,)))
    lookups = Lookup(-1, (1,)), Lookup(-2, (2,))
    first = replace(REINDEX, window=(Key(0, 0, (1.0, 0.16)),), selected=(), lookups=lookups)
    start = Explanation((0,), ("<begin>",), 7, "'a'", (first,))
    assert "pad pad <begin>" in printed(capsys, start)


def test_markup_and_emoji_in_tokens_are_text(capsys):
    text = printed(capsys, replace(E, layers=(replace(LOCAL, window=NEAR[:4]),)))
    assert "'[red]'" in text and "':smile:'" in text


def test_the_picture_has_a_bar_per_key_as_wide_as_its_tokens():
    figure = explain_picture.draw(E)
    assert len(figure.axes) == 8
    attention = figure.axes[4]  # of the second layer
    bars = [(bar.get_x(), bar.get_width(), bar.get_height()) for bar in attention.patches]
    near, far, marks = bars[:8], bars[8:10], bars[10:12]
    assert [height for *_, height in near] == pytest.approx([key.share for key in NEAR])
    assert [height for *_, height in far] == pytest.approx([-0.2, -0.08])
    for (left, width, _), (first, last) in zip(far, ((0, 1), (6, 7)), strict=True):
        assert left + width / 2 == pytest.approx((first + last) / 2)
        assert width == pytest.approx(last - first + 0.9)
    assert [bar[:2] for bar in marks] == [bar[:2] for bar in far], "a mark even for no weight"
    parts = [bar.get_width() for bar in figure.axes[5].patches]
    assert parts == pytest.approx([0.44, 0.28, 0.28])
    gates = [bar.get_height() for bar in figure.axes[7].patches]
    assert gates == [0.25, 0.5, 0.75] and not figure.axes[3].axison, "layer 0 has no Engram"


def test_the_picture_names_tokens_or_counts_them():
    names = [label.get_text() for label in explain_picture.draw(E, [1]).axes[0].get_xticklabels()]
    assert names[:3] == ["<begin>", "'a'", r"'\$b\$'"] and names[5] == r"'\xe9'"
    many = replace(E, ids=tuple(range(200)), texts=("'x'",) * 200)
    axes = explain_picture.draw(many, [1]).axes[0]
    assert axes.get_xlabel() == "position" and list(axes.get_xticks())[:2] == [0, 25]


@pytest.mark.parametrize(("name", "start"), [("e.png", b"\x89PNG"), ("e.svg", b"<?xml")])
@pytest.mark.parametrize("length", [1, 90])
def test_saved_files_are_pictures(lm, tmp_path, name, start, length):
    explain_picture.save(explain(lm, [0] * length), str(tmp_path / name))
    assert (tmp_path / name).read_bytes().startswith(start)


def test_refusals(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="ends in .png or .svg"):
        explain_picture.save(E, str(tmp_path / "e.gif"))
    with pytest.raises(UsageError, match=r"--out .*: No such file"):
        explain_picture.save(E, str(tmp_path / "none" / "e.png"))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UsageError, match=r"pip install 'dslearn\[notebooks\]'"):
        explain_picture.check("e.png")
