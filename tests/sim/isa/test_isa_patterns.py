"""iota and affine_select against the documented loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn.sim.isa.patterns import affine_select, iota
from dslearn.sim.isa.registers import register_alloc
from tests.support.isa import empty, grid, last, nl
from tests.support.sim import PSUM, expect_refusal, filled, values

PAIRS = st.lists(st.tuples(st.integers(-9, 9), st.integers(1, 4)), min_size=1, max_size=4)


def _loops(pattern: Any, p: int, offset: int, multiplier: int) -> np.ndarray:
    """The documentation's nested loops."""
    out = []
    for channel in range(p):
        stream = [offset + channel * multiplier]
        for step, count in pattern:
            stream = [value + i * step for value in stream for i in range(count)]
        out.append(stream)
    return np.array(out)


@given(PAIRS, st.integers(1, 40), st.integers(-50, 50), st.integers(-5, 5))
@settings(max_examples=50, deadline=None)
def test_iota(pattern: Any, p: int, offset: int, multiplier: int) -> None:
    expected = _loops(pattern, p, offset, multiplier)
    for kind in ("int32", "float32"):
        dst = empty(expected.shape, kind)
        iota(dst, [list(pair) for pair in pattern], offset, multiplier)
        assert np.array_equal(values(dst), expected)


def test_iota_wraps_casts_and_fills_any_shape() -> None:
    dst = empty((1, 2), "int32")
    iota(dst, [[1, 2]], offset=2**31 - 1)
    assert values(dst).tolist() == [[2**31 - 1, -(2**31)]]
    unsigned = empty((1, 2), "uint32")
    iota(unsigned, [[1, 2]], offset=-1)
    assert values(unsigned).tolist() == [[2**32 - 1, 0]]
    byte = empty((1, 2, 2), "uint8")
    iota(byte, [[100, 4]])
    assert values(byte).tolist() == [[[0, 100], [200, 255]]]  # saturates
    rounded = empty((1, 1))
    iota(rounded, [[0, 1]], offset=2**24 + 1)
    assert (values(rounded)[0, 0], last().engine) == (2**24, "gpsimd")


def test_iota_refusals() -> None:
    with expect_refusal("region", "psum"):
        iota(empty((2, 4), "int32", PSUM), [[1, 4]])
    with expect_refusal("shape", "4 elements"):
        iota(empty((2, 4), "int32"), [[1, 5]])
    with expect_refusal("operand", "5 dimensions"):
        iota(empty((2, 4), "int32"), [[1, 1]] * 4 + [[1, 4]])
    with expect_refusal("arguments", "[[step, count]", kind=TypeError):
        iota(empty((2, 4), "int32"), [1, 4])  # type: ignore[list-item]
    with expect_refusal("arguments", "compile-time", kind=TypeError):
        iota(empty((2, 4), "int32"), [[1, 4]], offset=register_alloc(3))  # type: ignore[arg-type]
    with expect_refusal("operand", "int32"):
        iota(empty((2, 4), "int32"), [[1, 4]], offset=2**31)


@pytest.mark.parametrize(
    "name", ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"]
)
def test_affine_select(name: str) -> None:
    data = grid(5, 6)
    dst = empty((5, 2, 3))
    affine_select(
        dst=dst, pattern=[[-1, 6]], channel_multiplier=1, on_true_tile=filled(data),
        on_false_value=-9.0, cmp_op=getattr(nl, name), offset=1,
    )  # fmt: skip
    chosen = getattr(np, name)(_loops([[-1, 6]], 5, 1, 1), 0)
    assert np.array_equal(values(dst).reshape(5, 6), np.where(chosen, data, np.float32(-9)))


def test_affine_select_makes_a_causal_mask_by_greater_equal() -> None:
    dst = empty((4, 4))
    affine_select(dst, [[-1, 4]], 1, filled(np.ones((4, 4), np.float32)), 0.0, nl.greater_equal)
    assert np.array_equal(values(dst), np.tril(np.ones((4, 4))))


def test_affine_select_keeps_bits_of_equal_dtypes() -> None:
    exact = np.full((1, 2), 2**24 + 1, np.int32)
    dst, through = empty((1, 2), "int32"), empty((1, 2))
    affine_select(dst, [[1, 2]], 0, filled(exact), 5)
    assert values(dst).tolist() == [[2**24 + 1, 5]]
    affine_select(through, [[1, 2]], 0, filled(exact), 5)
    assert values(through).tolist() == [[2**24, 5]]
    assert last().details == {"op": "equal"}


def test_affine_select_refusals() -> None:
    data, dst = filled(grid(2, 4)), empty((2, 4))
    with expect_refusal("region", "on_true_tile"):
        affine_select(dst, [[1, 4]], 0, filled(grid(2, 4), PSUM), 0.0)
    with expect_refusal("operand", "cmp_op=nl.add"):
        affine_select(dst, [[1, 4]], 0, data, 0.0, nl.add)
    with expect_refusal("shape", "count the 4 elements"):
        affine_select(dst, [[1, 3]], 0, data, 0.0)
    with expect_refusal("arguments", "on_false_value", kind=TypeError):
        affine_select(dst, [[1, 4]], 0, data, data)  # type: ignore[arg-type]
    affine_select(dst, [[1, 4]], 0, data, 0.0)
    assert values(dst)[:, 1:].tolist() == [[0, 0, 0]] * 2
