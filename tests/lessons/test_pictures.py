"""Figures carry their text, are the same bytes each time, and draw what they are given."""

from __future__ import annotations

import base64

import matplotlib
import numpy as np
import pytest
import torch

from dslearn.formats import e2m1, e4m3
from dslearn.lessons import code_map, described, heat, matrix, number_lines

matplotlib.use("agg")

import matplotlib.pyplot as plt  # noqa: E402


@pytest.fixture
def ax():
    figure, axes = plt.subplots()
    yield axes
    plt.close(figure)


def test_a_picture_is_png_with_alt_text_and_text():
    figure, axes = plt.subplots()
    axes.plot([1, 2])
    picture = described(figure, "a rising line")
    data, metadata = picture._repr_mimebundle_(include=None, exclude=None)
    assert base64.b64decode(data["image/png"]) == picture.png
    assert picture.png.startswith(b"\x89PNG") and b"Software" not in picture.png
    assert data["text/plain"] == repr(picture) == "[figure: a rising line]"
    assert metadata == {"image/png": {"alt": "a rising line"}}
    assert not plt.fignum_exists(figure.number), "the figure must be closed"


def test_the_same_figure_gives_the_same_bytes():
    pictures = []
    for _ in range(2):
        figure, axes = plt.subplots()
        axes.plot([1, 3, 2])
        pictures.append(described(figure, "three points").png)
    assert pictures[0] == pictures[1]


def test_number_lines_counts_positive_finite_numbers(ax):
    codes = torch.arange(256, dtype=torch.uint8)
    grids = {"ieee": e4m3.decode(codes, "ieee"), "fp4": e2m1.decode(codes[:16])}
    assert number_lines(ax, grids) == [119, 7]
    drawn = ax.lines[1].get_xdata()
    assert np.array_equal(drawn, [0.5, 1, 1.5, 2, 3, 4, 6])
    assert [label.get_text() for label in ax.get_yticklabels()] == ["ieee", "fp4"]


def test_heat_counts_what_is_not_a_number(ax):
    values = torch.tensor([[1.0, torch.inf], [-torch.inf, torch.nan]])
    assert heat(ax, values, 2.0, "three holes") == 3
    assert ax.get_title() == "three holes"
    assert np.ma.getmaskarray(ax.images[0].get_array()).sum() == 3


def test_code_map_numbers_groups_and_colours_them(ax):
    red = (1.0, 0.0, 0.0)
    number = code_map(ax, [(red, [0x78, 0xF8]), ((0.0, 0.0, 1.0), [1])])
    assert number.bincount().tolist() == [253, 2, 1]
    shown = np.asarray(ax.images[0].get_array())
    assert shown.shape == (16, 16, 3) and np.allclose(shown[7, 8], red)
    assert np.allclose(shown[0, 1], (0, 0, 1)) and np.allclose(shown[5, 5], 0.9)


def test_a_matrix_shows_each_number_in_its_cell(ax):
    matrix(ax, torch.tensor([[0.0, 0.25, 1.0], [0.5, 0.126, 0.9]]), "six")
    shown = {(text.get_position(), text.get_text()) for text in ax.texts}
    assert ((1, 0), "0.25") in shown and ((1, 1), "0.13") in shown and len(shown) == 6
    assert ax.get_title() == "six"
