"""What the layout of caches costs: bytes copied per call, and what a graph of stores becomes."""

from __future__ import annotations

import pytest
import torch

from dslearn.lessons.cache_layout import copied, operations, store, views


@pytest.mark.parametrize("layers", [2, 5])
def test_a_layer_of_a_token_major_tensor_is_copied_whole(layers):
    assert copied(views("layer-major", layers, 16, 4, 8)) == 0
    assert copied(views("token-major", layers, 16, 4, 8)) == layers * 16 * 4 * 8 * 4


def test_both_layouts_hold_the_same():
    for layout in ("layer-major", "token-major"):
        caches = views(layout, 3, 16, 4, 8)
        store(torch.ones(1, 4, 8), torch.tensor([5]), *caches)
        assert all(cache[5].eq(1).all() and cache.sum() == 32 for cache in caches)
        # One tensor holds all of them, so that a copy of it would be seen.
        assert len({cache.untyped_storage().data_ptr() for cache in caches}) == 1


def test_views_that_may_overlap_are_rebuilt_with_as_strided():
    """Two layers of a token-major tensor, written: the functional graph works on its storage."""
    plain = operations(views("layer-major", 2, 16, 4, 8))
    assert not [name for name in plain if "as_strided" in name]
    rebuilt = operations(views("token-major", 2, 16, 4, 8))
    assert rebuilt["aten.as_strided.default"] >= 2
    assert rebuilt["aten.as_strided_scatter.default"] == 2
