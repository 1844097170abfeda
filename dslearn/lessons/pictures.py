"""Figures of the notebooks: with alternative text, and the drawing that would hide the point.

The axes are matplotlib's, handed in: the library itself runs without it.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

DPI = 72
Colour = tuple[float, float, float]
GREY: Colour = (0.9, 0.9, 0.9)


class Picture:
    """A rendered figure; shown as PNG with alt text where pictures exist, else as the text."""

    def __init__(self, png: bytes, alt: str) -> None:
        self.png = png
        self.alt = alt

    def __repr__(self) -> str:
        return f"[figure: {self.alt}]"

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, str], dict[str, Any]]:
        """The protocol of IPython: data by type, and metadata by type."""
        picture = base64.b64encode(self.png).decode()
        return {"image/png": picture, "text/plain": repr(self)}, {"image/png": {"alt": self.alt}}


def described(figure: Any, alt: str) -> Picture:
    """Render and close a matplotlib figure; the last expression of its cell.

    Args:
        figure: what `plt.subplots` returned.
        alt: what the figure shows, for readers who do not see it.
    """
    file = io.BytesIO()
    # no version inside: the same picture is the same bytes
    figure.savefig(file, format="png", dpi=DPI, bbox_inches="tight", metadata={"Software": None})
    import_module("matplotlib.pyplot").close(figure)
    return Picture(file.getvalue(), alt)


def number_lines(ax: Any, grids: Mapping[str, Tensor]) -> list[int]:
    """Draw the positive numbers of each format as ticks on a line of its own, 2^-10 to 2^10.

    Args:
        ax: matplotlib axes.
        grids: label -> every number of the format, fp32 [n]; zeros, NaN and infinity are left out.

    Returns:
        How many numbers each line has, those outside the picture too.
    """
    counts = []
    for line, grid in enumerate(grids.values()):
        points = grid[(grid > 0) & grid.isfinite()]
        counts.append(len(points))
        ax.plot(points.numpy(), [-line] * len(points), "|", markersize=16)
    ax.set_xscale("log", base=2)
    lines = range(0, -len(grids), -1)
    ax.set(xlim=(2**-10, 2**10), ylim=(0.6 - len(grids), 0.6), yticks=lines, yticklabels=grids)
    return counts


def heat(ax: Any, values: Tensor, limit: float, title: str) -> int:
    """Draw a matrix in colours from -limit to limit, infinity and NaN black.

    Returns:
        How many cells are black.
    """
    ax.set_facecolor("black")
    shown = values.where(values.isfinite(), torch.nan)
    ax.imshow(shown.numpy(), cmap="RdBu", vmin=-limit, vmax=limit)
    ax.set(title=title, xticks=[], yticks=[])
    return int(shown.isnan().sum())


def matrix(ax: Any, values: Tensor, title: str) -> None:
    """Draw a small matrix of numbers from 0 to 1, darker for larger, with the numbers in it."""
    ax.imshow(values.numpy(), cmap="Blues", vmin=0, vmax=1.5)
    for (row, column), value in zip(
        torch.cartesian_prod(*map(torch.arange, values.shape)).tolist(),
        values.flatten().tolist(),
        strict=True,
    ):
        ax.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=8)
    ax.set(title=title, xticks=[], yticks=[])


def code_map(ax: Any, groups: Iterable[tuple[Colour, Iterable[int]]]) -> Tensor:
    """Draw the 256 codes as a 16 x 16 map, first hexadecimal digit down, second across.

    Args:
        ax: matplotlib axes.
        groups: a colour (red, green, blue in 0..1) and the codes that get it; others are grey.

    Returns:
        int64 [256]: the number of the group of every code, from 1; 0 for grey.
    """
    colours = torch.tensor(GREY).repeat(256, 1)
    number = torch.zeros(256, dtype=torch.int64)
    for index, (colour, codes) in enumerate(groups, start=1):
        members = list(codes)
        colours[members], number[members] = torch.tensor(colour), index
    ax.imshow(colours.view(16, 16, 3).numpy())
    digits = [f"{digit:x}" for digit in range(16)]
    ax.set_xticks(range(16), labels=digits)
    ax.set_yticks(range(16), labels=digits)
    ax.set(xlabel="second digit of the code", ylabel="first digit")
    return number
