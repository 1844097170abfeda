"""local_gather and nc_n_gather against loops and NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dslearn.sim.isa.gathers import local_gather, nc_n_gather
from dslearn.sim.language.allocate import ndarray
from tests.support.sim import PSUM, SBUF, expect_refusal, filled, values


def counting(*shape: int, kind: Any = np.int16) -> np.ndarray:
    return np.arange(np.prod(shape)).astype(kind).reshape(shape)


@given(
    groups=st.integers(1, 8),
    columns=st.integers(1, 4),
    run=st.sampled_from([1, 2, 4, 8]),
    drop=st.integers(0, 15),
    seed=st.integers(0, 99),
)
def test_local_gather_against_loops(
    groups: int, columns: int, run: int, drop: int, seed: int
) -> None:
    p, n = 16 * groups, 16 * columns - drop
    data = counting(p, 40)
    index = np.random.default_rng(seed).integers(0, 41 - run, (p, columns)).astype(np.uint16)
    dst = ndarray((p, n * run), "int16", SBUF)
    local_gather(dst, filled(data), filled(index), num_elem_per_idx=run, num_valid_indices=n)
    for partition in range(p):
        slab = index[partition // 16 * 16 :][:16].flatten(order="F")[:n]
        expected = np.concatenate([data[partition, i : i + run] for i in slab])
        assert np.array_equal(values(dst)[partition], expected)


def test_local_gather_refuses() -> None:
    data, index = filled(counting(32, 8)), filled(np.zeros((32, 2), np.uint16))
    dst = ndarray((32, 32), "int16", SBUF)
    with expect_refusal("dtype", "must be uint16"):
        local_gather(dst=dst, src_buffer=data, index=index.view("int16"))
    with expect_refusal("operand", "(1, 2, 4, 8, 16, 32)"):
        local_gather(dst=dst, src_buffer=data, index=index, num_elem_per_idx=3)
    with expect_refusal("operand", "1 to 32 per group"):
        local_gather(dst=dst, src_buffer=data, index=index, num_valid_indices=33)
    with expect_refusal("shape", "31 x 1 elements"):
        local_gather(dst=dst, src_buffer=data, index=index, num_valid_indices=31)
    with expect_refusal("shape", "a multiple of 16"):
        local_gather(dst=dst[0:8], src_buffer=data[0:8], index=index[0:8])
    with expect_refusal("region", "must be in ['sbuf'], got psum"):
        local_gather(dst=dst, src_buffer=filled(counting(32, 8), PSUM), index=index)
    far = filled(np.full((32, 2), 8, np.uint16))
    with expect_refusal("bounds", "offset 8 of 8 elements", kind=IndexError):
        local_gather(dst=dst, src_buffer=data, index=far)
    local_gather(dst=dst, src_buffer=data, index=index)
    assert np.array_equal(values(dst), np.repeat(counting(32, 8)[:, :1], 32, axis=1))


@given(st.integers(1, 128), st.integers(1, 20), st.integers(0, 99))
def test_nc_n_gather_is_take_along_axis(p: int, n: int, seed: int) -> None:
    data = counting(p, 3, 5, kind=np.float32)
    index = np.random.default_rng(seed).integers(0, 15, (p, n))
    dst = ndarray((p, n), "float32", SBUF)
    nc_n_gather(dst=dst, data=filled(data), indices=filled(index, kind="uint32"))
    assert np.array_equal(values(dst), np.take_along_axis(data.reshape(p, 15), index, 1))


def test_nc_n_gather_refuses() -> None:
    data, index = filled(counting(2, 4)), filled(np.full((2, 3), 3), kind="uint32")
    dst = ndarray((2, 3), "int16", SBUF)
    with expect_refusal("dtype", "must be uint32"):
        nc_n_gather(dst=dst, data=data, indices=index.view("int32"))
    with expect_refusal("shape"):
        nc_n_gather(dst=dst[:, 0:2], data=data, indices=index)
    with expect_refusal("bounds", "offset 3 of 3", kind=IndexError):
        nc_n_gather(dst=dst, data=data[:, 0:3], indices=index)
    nc_n_gather(dst=dst, data=data, indices=index)
    assert np.array_equal(values(dst), [[3] * 3, [7] * 3])
