"""What the lesson on stores counts: bytes worked out by hand, for both layouts."""

from __future__ import annotations

import pytest
import torch

from dslearn.lessons.cache_layout import views
from dslearn.lessons.copies import functional, step, written
from dslearn.regions.backend import dslearn_backend

ROWS, NEW = torch.tensor([1, 2]), torch.ones(2, 2, 4)  # 64 bytes
LAYER = 8 * 2 * 4 * 4  # 8 tokens, key and value, 4 fp32 numbers
RESULT = 2 * 4 * 4


def caches(layout):
    """The first two of three layers."""
    return views(layout, 3, 8, 2, 4)[:2]


@pytest.mark.parametrize(
    ("backend", "layout", "expected"),
    [
        (dslearn_backend, "layer-major", [64, RESULT]),
        (functional, "layer-major", [LAYER, RESULT, LAYER]),
        (functional, "token-major", [LAYER, 3 * LAYER, RESULT, 3 * LAYER]),
    ],
)
def test_bytes_are_those_counted_by_hand(backend, layout, expected):
    assert [size for _, size in written(backend, step, *caches(layout), ROWS, NEW)] == expected


def test_the_store_is_done():
    own, other = caches("layer-major")
    written(functional, step, own, other, ROWS, NEW)
    assert own.sum() == 16 and not other.any()
