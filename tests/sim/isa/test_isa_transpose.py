"""nc_transpose: bits, sizes, engines, PSUM banks."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dslearn.sim.isa.enums import engine
from dslearn.sim.isa.transpose import nc_transpose
from dslearn.sim.language.allocate import ndarray
from tests.support.sim import HBM, PSUM, SBUF, expect_refusal, filled, values


def counting(*shape: int, kind: Any = np.int16) -> np.ndarray:
    return np.arange(np.prod(shape)).astype(kind).reshape(shape)


@given(
    p=st.integers(1, 128),
    f=st.integers(1, 128),
    kind=st.sampled_from(["float32", "bfloat16", "uint8", "float16", "float8_e4m3"]),
)
def test_the_tensor_engine_transposes_bits(p: int, f: int, kind: str) -> None:
    data = filled(counting(p, f) % 97, kind=kind)
    dst = ndarray((f, p, 2), kind, PSUM)[:, :, 0]  # every second place, as bytes need it
    handle = nc_transpose(dst=dst, data=data)
    assert handle._instruction.engine == "tensor"
    assert np.array_equal(values(dst).view(np.uint8), values(data).T.copy().view(np.uint8))


def test_nan_payloads_survive_and_free_dimensions_flatten() -> None:
    words = np.array([[0x7FC12345, 0xFF800000, 0x80000000, 1]], np.uint32)
    dst = ndarray((4, 1), "float32", SBUF)
    nc_transpose(dst=dst, data=filled(words).view("float32"), engine=engine.vector)
    assert np.array_equal(values(dst).view(np.uint32), words.T)
    data, dst = counting(2, 3, 4, kind=np.float32), ndarray((12, 2), "float32", PSUM)
    nc_transpose(dst=dst, data=filled(data))
    assert np.array_equal(values(dst), data.reshape(2, 12).T)
    wide = filled(data[:, :1, :1].reshape(2, 1)).ap([[1, 2], [0, 5]])
    dst = ndarray((5, 2), "float32", PSUM)
    nc_transpose(dst=dst, data=wide)
    assert np.array_equal(values(dst), np.tile(data[:, 0, 0], (5, 1)))


def test_nc_transpose_engines_by_size_and_memory() -> None:
    small, large = filled(counting(32, 32)), filled(counting(33, 32))
    sbuf, psum = ndarray((32, 32), "int16", SBUF), ndarray((32, 33), "int16", PSUM)
    assert nc_transpose(dst=sbuf, data=small)._instruction.engine == "vector"
    assert nc_transpose(dst=psum, data=large)._instruction.engine == "tensor"
    with expect_refusal("region", "dst must be in ['psum'], got sbuf"):
        nc_transpose(dst=sbuf, data=small, engine=engine.tensor)
    with expect_refusal("engine", "tensor can do it"):
        nc_transpose(dst=psum, data=large, engine=engine.vector)
    with expect_refusal("engine", "up to 128 x 128 from SBUF to PSUM"):
        nc_transpose(dst=ndarray((32, 33), "int16", SBUF), data=large)
    with expect_refusal("shape", "gives [32, 33]"):
        nc_transpose(dst=psum[:, 0:32], data=large)
    with expect_refusal("dtype"):
        nc_transpose(dst=ndarray((32, 33), "bfloat16", PSUM), data=large)
    with expect_refusal("region", "private_hbm"):
        nc_transpose(dst=psum, data=filled(counting(33, 32), HBM))


def test_the_tensor_engine_writes_bytes_as_16_bit_words() -> None:
    data, packed = filled(counting(40, 8, kind=np.uint8)), ndarray((8, 40), "uint8", PSUM)
    with expect_refusal("operand", "packs its bytes", "allocate (P, N, 2)"):
        nc_transpose(dst=packed, data=data)
    apart = ndarray((8, 40, 2), "uint8", PSUM)
    nc_transpose(dst=apart[:, :, 0], data=data)
    assert np.array_equal(values(apart[:, :, 0]), values(data).T)
    small = filled(counting(32, 8, kind=np.uint8))
    assert nc_transpose(dst=packed[:, :32], data=small)._instruction.engine == "vector"
    with expect_refusal("operand", "packs its bytes"):
        nc_transpose(dst=packed[:, :32], data=small, engine=engine.tensor)


def test_a_transpose_stays_within_a_psum_bank() -> None:
    psum, data = ndarray((4, 1024), "float32", PSUM), filled(counting(64, 4, kind=np.float32))
    with expect_refusal("psum-bank", "2048"):
        nc_transpose(dst=psum[:, 480:544], data=data)
    nc_transpose(dst=psum[:, 448:512], data=data)
    nc_transpose(dst=psum[:, 512:576], data=data)
    assert np.array_equal(values(psum[:, 512:576]), values(psum[:, 448:512]))
