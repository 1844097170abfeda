"""How outputs are cut into blocks, and what several tiles per DMA give."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

import dslearn.kernels  # noqa: F401 - decides which nki runs
from dslearn.kernels.blocks import cut, several


@given(st.integers(1, 2000))
def test_blocks_are_whole_few_and_even(units):
    blocks = cut(units)
    covered = [u for first, count in blocks for u in range(first, first + count)]
    assert covered == list(range(units)) and len(blocks) == -(-units // 4)
    sizes = {count for _, count in blocks}
    assert max(sizes) <= 4 and max(sizes) - min(sizes) <= 1


class Held:
    """Stands for a tile [128, count, width]: remembers what was asked of it."""

    def __init__(self, t, count):
        self.t, self.count = t, count

    def __getitem__(self, key):
        return self.t + key[1] if key[1] < self.count else None


@given(st.integers(1, 60), st.integers(1, 9000), st.sampled_from([1, 2]))
def test_tiles_are_loaded_in_order_several_at_once(tiles, width, size):
    asked = []

    def fetch(t, count, first, columns):
        asked.append((t, count))
        assert (first, columns) == (7, width)
        return Held(t, count)

    load = several(fetch, tiles, size)
    assert [load(t, 7, width) for t in range(tiles)] == list(range(tiles))
    assert sum(count for _, count in asked) == tiles, "each tile once"
    assert max(count for _, count in asked) * width * size <= max(8192, width * size)
