"""GpSimd's searches in groups of 16 partitions: topk, nonzero_with_count, sequence_bounds."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from dslearn.sim.access import store
from dslearn.sim.isa.groups import nonzero_with_count, sequence_bounds, topk
from tests.support.isa import empty, last
from tests.support.sim import PSUM, expect_refusal, filled, values


def _snake(rows: np.ndarray, columns: int) -> np.ndarray:
    """[G, n] as [16 G, columns]: element s of a row at partition s % 16, column s // 16."""
    out = np.zeros((16 * len(rows), columns), np.float32)
    for g, row in enumerate(rows):
        for s, value in enumerate(row):
            out[16 * g + s % 16, s // 16] = value
    return out.astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize(("n", "k"), [(8, 1), (42, 8), (64, 16), (100, 37), (48, 48)])
def test_topk(n: int, k: int) -> None:
    rng = np.random.default_rng(n)
    rows = np.stack([rng.permutation(n) for _ in range(3)]).astype(np.float32)  # bf16 holds < 256
    src = filled(_snake(rows, -(-n // 16) + 1))
    best, places = empty((48, k), "bfloat16"), empty((48, k), "uint32")
    topk(val_dst=best, idx_dst=places, src=src, n=n)
    for g, row in enumerate(rows):
        order = np.argsort(row)[-k:]
        for j, s in enumerate(order):
            assert values(best)[16 * g + j % 16, j // 16] == row[s]
            assert values(places)[16 * g + j % 16, j // 16] == s
    assert last().details == {"n": n, "k": k}


def test_topk_reads_only_the_snake() -> None:
    rows = np.arange(20, dtype=np.float32)[None]
    src = empty((16, 2), "bfloat16")
    data = _snake(rows, 2)
    store(src[:, 0:1], data[:, 0:1])
    best, places = empty((16, 8), "bfloat16"), empty((16, 8), "uint32")
    with expect_refusal("uninitialised", "topk src"):
        topk(best, places, src, 20)
    store(src[0:4, 1:2], data[0:4, 1:2])
    topk(best, places, src, 20)
    assert values(best)[:8, 0].tolist() == list(range(12, 20))


def test_topk_refusals() -> None:
    src = filled(np.zeros((32, 4), np.float32), kind="bfloat16")
    best, places = empty((32, 8), "bfloat16"), empty((32, 8), "uint32")
    topk(best, places, src, 64)
    assert values(best)[:16, 0].tolist()[:8] == [0.0] * 8
    with expect_refusal("operand", "n=7"):
        topk(best, places, src, 7)
    with expect_refusal("shape", "columns for n=65"):
        topk(best, places, src, 65)
    with expect_refusal("dtype", "src is float32"):
        topk(best, places, filled(np.zeros((32, 4), np.float32)), 64)
    with expect_refusal("dtype", "idx_dst is int32"):
        topk(best, empty((32, 8), "int32"), src, 64)
    with expect_refusal("operand", "k <= n"):
        topk(empty((32, 9), "bfloat16"), empty((32, 9), "uint32"), src, 8)
    with expect_refusal("shape", "sixteens"):
        topk(empty((8, 8), "bfloat16"), empty((8, 8), "uint32"), src[0:8], 8)
    with expect_refusal("region", "psum"):
        topk(best, places, filled(np.zeros((32, 4), np.float32), PSUM, "bfloat16"), 64)


@pytest.mark.parametrize("kind", ["float32", "int32"])
def test_nonzero_of_the_documented_example(kind: str) -> None:
    src = filled(np.array([[0, 1, 1, 0, 0, 1, 0, 0]], kind))
    dst = empty((1, 9), "int32")
    nonzero_with_count(dst=dst, src=src, index_offset=16, padding_val=-1)
    assert values(dst).tolist() == [[17, 18, 21, -1, -1, -1, -1, -1, 3]]


def test_nonzero_touches_every_sixteenth_partition_only() -> None:
    src, dst = empty((40, 3)), filled(np.full((40, 4), 99, np.int32))
    for row in (0, 16, 32):
        store(src[row : row + 1] if row != 16 else src.ap([[3, 1], [1, 3]], 48),
              np.array([[row, 0, 2]], np.float32))  # fmt: skip
    nonzero_with_count(dst, src)
    expected = np.full((40, 4), 99)
    expected[0], expected[16], expected[32] = [2, -1, -1, 1], [0, 2, -1, 2], [0, 2, -1, 2]
    assert np.array_equal(values(dst), expected)


def test_nonzero_refusals() -> None:
    src = filled(np.ones((1, 4), np.float32))
    with expect_refusal("dtype", "to int32"):
        nonzero_with_count(empty((1, 5)), src)
    with expect_refusal("dtype", "to int32"):
        nonzero_with_count(empty((1, 5), "int32"), filled(np.ones((1, 4), np.int16)))
    with expect_refusal("shape", "one element per partition more"):
        nonzero_with_count(empty((1, 4), "int32"), src)
    with expect_refusal("arguments", "padding_val", kind=TypeError):
        nonzero_with_count(empty((1, 5), "int32"), src, padding_val=0.5)  # type: ignore[arg-type]
    dst = empty((1, 5), "int32")
    nonzero_with_count(dst, src, padding_val=7)
    assert values(dst).tolist() == [[0, 1, 2, 3, 4]]


@pytest.mark.parametrize("kind", ["float32", "int32"])
def test_sequence_bounds(kind: str) -> None:
    ids = filled(np.array([[1, 1, 2, 2, 2, 0, 0]], kind))
    dst = empty((1, 2, 7), kind)
    sequence_bounds(dst=dst, segment_ids=ids)
    assert values(dst).tolist() == [[[0, 0, 2, 2, 2, 7, 7], [2, 2, 5, 5, 5, -1, -1]]]


def test_sequence_bounds_refusals() -> None:
    with expect_refusal("shape", "(1, 2, N)"):
        sequence_bounds(empty((1, 14)), filled(np.ones((1, 7), np.float32)))
    with expect_refusal("shape", "(1, N)"):
        sequence_bounds(empty((2, 2, 7)), filled(np.ones((2, 7), np.float32)))
    with expect_refusal("dtype", "segment_ids"):
        sequence_bounds(empty((1, 2, 7)), filled(np.ones((1, 7), np.int16)))
    sequence_bounds(empty((1, 2, 7), "int32"), filled(np.ones((1, 7), np.float32)))
    assert last().engine == "gpsimd"
