"""Figures of notebook 03 draw what they are given and return what closed."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest
import torch

from dslearn.lessons.attention_pictures import groups, selection

matplotlib.use("agg")

import matplotlib.pyplot as plt  # noqa: E402


@pytest.fixture
def ax():
    figure, axes = plt.subplots()
    yield axes
    plt.close(figure)


@pytest.mark.parametrize(
    ("calls", "closed", "waiting"),
    [
        ([3, 1, 1, 2], [[0], [1], [], [2]], [2, 4, 6]),
        ([4], [[0, 1]], []),
        ([1, 0, 5], [[], [], [0, 1, 2]], [0, 0]),
    ],
)
def test_groups_close_by_position_and_rings_wait(ax, calls, closed, waiting):
    assert groups(ax, calls) == closed
    tokens = [x for line in ax.lines if line.get_zorder() == 3 for x in line.get_xdata()]
    assert tokens == list(range(sum(calls)))
    bars = [list(line.get_xdata()) for line in ax.lines if line.get_linewidth() == 9]
    assert bars == [[2 * pair, 2 * pair + 1] for pairs in closed for pair in pairs]
    assert [line.get_xdata()[0] for line in ax.lines if line.get_markersize() == 14] == waiting
    assert [text.get_text() for text in ax.texts] == [f"entry {p}" for ps in closed for p in ps]


def test_selection_marks_the_chosen_and_shades_the_spans(ax):
    scores = torch.tensor([1.0, -2.0, 5.0, 3.0])
    selection(ax, scores, (entry for entry in (0, 2)), [range(0, 2)])
    line, dots = ax.lines
    assert np.array_equal(line.get_ydata(), scores) and list(dots.get_xdata()) == [0, 2]
    assert list(dots.get_ydata()) == [1, 5]
    (span,) = ax.patches
    assert (span.get_x(), span.get_width()) == (-0.5, 2)
