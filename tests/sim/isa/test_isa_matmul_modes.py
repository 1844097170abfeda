"""nc_matmul's modes: double_row, transposes, tiles of the array."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dslearn.sim.isa.enums import matmul_perf_mode
from dslearn.sim.isa.matmul import nc_matmul
from dslearn.sim.tensor import NkiTensor
from tests.support.isa import empty, grid, last
from tests.support.sim import PSUM, expect_refusal, filled, values

DOUBLE = matmul_perf_mode.double_row


def _psum(m: int, n: int, kind: str = "float32") -> NkiTensor:
    return empty((m, n), kind, PSUM)


def _integers(p: int, n: int, seed: int) -> np.ndarray:
    """Small integers: every order of summation gives the same fp32 number."""
    return np.random.default_rng(seed).integers(-8, 8, (p, n)).astype(np.float32)


@pytest.mark.parametrize("kinds", [("float8_e4m3", "float8_e4m3"), ("float8_e4m3", "float8_e5m2")])
def test_double_row_contracts_partition_and_pair(kinds: tuple[str, str]) -> None:
    a, b = _integers(40, 14, 1).reshape(40, 2, 7), _integers(40, 18, 2).reshape(40, 2, 9)
    dst = _psum(7, 9)
    nc_matmul(dst, filled(a, kind=kinds[0]), filled(b, kind=kinds[1]), perf_mode=DOUBLE)
    k = {(p, j): j * 40 + p for p in range(40) for j in range(2)}  # the documented order
    long_a, long_b = np.zeros((80, 7)), np.zeros((80, 9))
    for (p, j), row in k.items():
        long_a[row], long_b[row] = a[p, j], b[p, j]
    assert np.array_equal(values(dst), long_a.T @ long_b)
    assert (last().details["k"], last().details["perf_mode"]) == (80, "double_row")
    nc_matmul(dst, filled(a, kind=kinds[0]), filled(b, kind=kinds[1]), perf_mode="double_row")
    assert np.array_equal(values(dst), 2 * (long_a.T @ long_b))


def test_double_row_refusals() -> None:
    fp8 = filled(_integers(8, 12, 1).reshape(8, 2, 6), kind="float8_e4m3")
    with expect_refusal("dtype", "fp8 only"):
        bf16 = filled(_integers(8, 12, 1).reshape(8, 2, 6), kind="bfloat16")
        nc_matmul(_psum(6, 6), bf16, fp8, perf_mode=DOUBLE)
    with expect_refusal("shape", "(K/2, 2, columns)"):
        nc_matmul(_psum(6, 6), fp8, fp8.reshape((8, 12)), perf_mode=DOUBLE)
    with expect_refusal("operand", "is_transpose"):
        nc_matmul(_psum(6, 6), fp8, fp8, perf_mode=DOUBLE, is_transpose=True)
    with expect_refusal("operand", "column tiles"):
        nc_matmul(
            _psum(6, 6), fp8, fp8, perf_mode=DOUBLE, tile_position=(0, 0), tile_size=(128, 64)
        )
    with expect_refusal("arguments", "perf_mode=1", kind=TypeError):
        nc_matmul(_psum(6, 6), fp8, fp8, perf_mode=1)
    nc_matmul(_psum(6, 6), fp8, fp8, perf_mode=DOUBLE, tile_position=(0, 0), tile_size=(32, 128))
    assert last().details["tile_size"] == (32, 128)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float8_e4m3", "float8_e5m2"])
def test_transpose_moves_bits(kind: str) -> None:
    data = filled(grid(5, 9), kind=kind)
    raw = values(data)
    raw[0, 0], raw[1, 1] = np.nan, np.inf
    data = filled(raw, kind=kind)
    identity = filled(np.eye(5, dtype=np.float32), kind=kind)
    dst = empty((9, 5, 2), kind, PSUM)[:, :, 0]
    nc_matmul(dst, data, identity, is_transpose=True)
    assert values(dst).tobytes() == np.ascontiguousarray(raw.T).tobytes()
    assert last().details["is_transpose"] is True


def test_transpose_refusals() -> None:
    data = filled(grid(5, 9), kind="bfloat16")
    identity = filled(np.eye(5, dtype=np.float32), kind="bfloat16")
    with expect_refusal("dtype", "dtype of stationary"):
        nc_matmul(_psum(9, 5), data, identity, is_transpose=True)
    with expect_refusal("operand", "identity"):
        nc_matmul(_psum(9, 9, "bfloat16"), data, data, is_transpose=True)
    with expect_refusal("operand", "bits do not add"):
        nc_matmul(_psum(9, 5, "bfloat16"), data, identity, is_transpose=True, accumulate=True)
    byte, one = filled(grid(5, 9), kind="float8_e4m3"), filled(np.eye(5), kind="float8_e4m3")
    with expect_refusal("operand", "is_transpose dst", "packs its bytes"):
        nc_matmul(_psum(9, 5, "float8_e4m3"), byte, one, is_transpose=True)
    dst = _psum(9, 5, "bfloat16")
    nc_matmul(dst, data, identity, is_transpose=True, is_moving_onezero=True)
    assert np.array_equal(values(dst), values(data).T)


@pytest.mark.parametrize(
    ("position", "size"), [((0, 0), (64, 128)), ((64, 0), (64, 128)), ((96, 32), (32, 32))]
)
def test_tiles_of_the_array(position: tuple[int, int], size: tuple[int, int]) -> None:
    a, b = filled(_integers(32, 32, 1)), filled(_integers(32, 6, 2))
    dst = _psum(32, 6)
    nc_matmul(dst, a, b, tile_position=position, tile_size=size)
    assert np.array_equal(values(dst), values(a).T @ values(b))
    assert (last().details["tile_position"], last().details["tile_size"]) == (position, size)


def test_tile_refusals() -> None:
    a, b = filled(grid(40, 40)), filled(grid(40, 6))

    def call(**tiling: Any) -> None:
        nc_matmul(_psum(40, 6), a, b, **tiling)

    with expect_refusal("operand", "or neither"):
        call(tile_size=(64, 128))
    with expect_refusal("operand", "32, 64 or 128"):
        call(tile_position=(0, 0), tile_size=(48, 128))
    with expect_refusal("operand", "multiple of tile_size"):
        call(tile_position=(32, 0), tile_size=(64, 128))
    with expect_refusal("operand", "multiple of tile_size"):
        call(tile_position=(128, 0), tile_size=(64, 128))
    with expect_refusal("matmul-size", "K exceeds the tile's 32 rows, got 40"):
        call(tile_position=(0, 0), tile_size=(32, 128))
    with expect_refusal("matmul-size", "M exceeds gemm_stationary_fmax=32, got 40"):
        call(tile_position=(0, 0), tile_size=(64, 32))
    call(tile_position=(64, 64), tile_size=(64, 64))
    assert last().details["tile_position"] == (64, 64)
