"""nc_stream_shuffle: quadrants, broadcasts, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dslearn.sim.isa.shuffle import nc_stream_shuffle
from dslearn.sim.language.allocate import ndarray
from tests.support.sim import SBUF, expect_refusal, filled, values

KEEP = 255


def counting(*shape: int, kind: Any = np.int16) -> np.ndarray:
    return np.arange(np.prod(shape)).astype(kind).reshape(shape)


@given(
    mask=st.lists(st.sampled_from([*range(32), KEEP]), min_size=32, max_size=32),
    quadrants=st.integers(1, 4),
    kind=st.sampled_from([np.float32, np.uint8]),
)
def test_a_shuffle_is_a_map_of_partitions(mask: list[int], quadrants: int, kind: Any) -> None:
    rows = 32 * quadrants
    src, old = counting(rows, 3, kind=kind), counting(rows, 3, kind=kind) + 100
    dst = filled(old)
    nc_stream_shuffle(dst=dst, src=filled(src), shuffle_mask=mask)
    expected = np.stack(
        [old[p] if mask[p % 32] == KEEP else src[p - p % 32 + mask[p % 32]] for p in range(rows)]
    )
    assert np.array_equal(values(dst), expected)
    same = filled(src)
    nc_stream_shuffle(dst=same, src=same, shuffle_mask=[*range(1, 32), 0])
    assert np.array_equal(values(same)[0:31], src[1:32])


def test_one_partition_broadcasts_to_a_quadrant() -> None:
    tile, src = ndarray((128, 2, 2), "float32", SBUF), filled(np.full((1, 4), 5, np.float32))
    for start in range(0, 128, 32):
        nc_stream_shuffle(dst=tile[start : start + 32], src=src, shuffle_mask=[0] * 32)
    assert (values(tile) == 5).all()
    with expect_refusal("bounds", "partition 96 of src, which has 1", kind=IndexError):
        nc_stream_shuffle(dst=tile, src=src, shuffle_mask=[0] * 32)


def test_shuffles_refuse() -> None:
    src, dst = filled(counting(64, 4)), filled(counting(128, 4))
    identity = list(range(32))
    with expect_refusal("operand", "32 integers"):
        nc_stream_shuffle(dst=dst[0:64], src=src, shuffle_mask=identity[:31])
    with expect_refusal("operand", "0 to 31, or 255"):
        nc_stream_shuffle(dst=dst[0:64], src=src, shuffle_mask=[*identity[:31], 32])
    with expect_refusal("shape", "elements per partition"):
        nc_stream_shuffle(dst=dst[0:64, 0:2], src=src, shuffle_mask=identity)
    with expect_refusal("dtype"):
        nc_stream_shuffle(dst=dst.view("uint16")[0:64], src=src, shuffle_mask=identity)
    with expect_refusal("start-partition", "dst starts at partition 32 with 64 partitions"):
        nc_stream_shuffle(dst=dst[32:40], src=src, shuffle_mask=identity)
    nc_stream_shuffle(dst=dst[64:128], src=src, shuffle_mask=identity)
    assert np.array_equal(values(dst[64:128]), values(src))
