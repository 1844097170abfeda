"""PSUM accumulation: overwrite, add, and what `accumulate=None` decides, as a state machine."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn.sim.isa.copies import memset, tensor_copy
from dslearn.sim.isa.matmul import nc_matmul
from dslearn.sim.isa.tensor_scalar import tensor_scalar
from dslearn.sim.tensor import NkiTensor
from tests.support.isa import empty, nl
from tests.support.sim import PSUM, expect_refusal, filled, values


def _ones(n: int = 6) -> tuple[NkiTensor, NkiTensor]:
    """Operands whose product is 3 everywhere."""
    return filled(np.ones((3, 4), np.float32)), filled(np.ones((3, n), np.float32))


def _psum(n: int = 6) -> NkiTensor:
    return empty((4, n), region=PSUM)


@given(st.lists(st.sampled_from([None, True, False]), min_size=1, max_size=8))
@settings(deadline=None)
def test_sequences(modes: list[bool | None]) -> None:
    a, b = _ones()
    dst, expected = _psum(), 0
    for step, mode in enumerate(modes):
        if step == 0 and mode:
            with expect_refusal("psum-accumulate", "accumulate=False"):
                nc_matmul(dst, a, b, accumulate=mode)
            return
        nc_matmul(dst, a, b, accumulate=mode)
        expected = 3 if step == 0 or mode is False else expected + 3
        assert values(dst).tolist() == [[expected] * 6] * 4


def test_none_decides_element_by_element() -> None:
    a, b = _ones()
    dst = _psum()
    nc_matmul(dst[:, 0:3], *(a, b[:, 0:3]))
    nc_matmul(dst, a, b)
    assert values(dst)[0].tolist() == [6, 6, 6, 3, 3, 3]
    with expect_refusal("psum-accumulate", "8 of 24"):
        fresh = _psum()
        nc_matmul(fresh[:, 0:4], a, b[:, 0:4])
        nc_matmul(fresh, a, b, accumulate=True)


def test_a_new_tile_starts_anew() -> None:
    a, b = _ones()
    for _ in range(3):
        dst = _psum()
        nc_matmul(dst, a, b)
        assert values(dst)[0, 0] == 3


def test_a_tile_kept_outside_the_loop_keeps_adding() -> None:
    a, b = _ones()
    dst, out = _psum(), empty((4, 6))
    for group in range(3):
        for _ in range(2):
            nc_matmul(dst, a, b)
        tensor_copy(out, dst)  # reading does not end the group
        assert values(out)[0, 0] == 6 * (group + 1)
    for _ in range(3):
        for k in range(2):
            nc_matmul(dst, a, b, accumulate=k > 0)
        assert values(dst)[0, 0] == 6


@pytest.mark.parametrize("value", [1.0, float("nan")])
def test_onto_what_another_engine_wrote_is_undefined(value: float) -> None:
    a, b = _ones()
    dst = _psum()
    memset(dst, value)
    with expect_refusal("psum-accumulate", "were not written by a matmul"):
        nc_matmul(dst, a, b, accumulate=True)
    with expect_refusal("psum-accumulate", "another engine"):
        nc_matmul(dst, a, b)
    nc_matmul(dst, a, b, accumulate=False)
    nc_matmul(dst, a, b, accumulate=True)
    assert values(dst).tolist() == [[6.0] * 6] * 4


def test_zeros_agree_either_way() -> None:
    a, b = _ones()
    dst = _psum()
    memset(dst, 0.0)
    with expect_refusal("psum-accumulate", "accumulate=True"):
        nc_matmul(dst, a, b, accumulate=True)
    nc_matmul(dst, a, b)
    assert values(dst)[0, 0] == 3


def test_scaling_in_place_ends_the_group() -> None:
    a, b = _ones()
    dst = _psum()
    nc_matmul(dst, a, b)
    tensor_scalar(dst, dst, nl.multiply, 0.5)
    with expect_refusal("psum-accumulate", "another engine"):
        nc_matmul(dst, a, b)
    assert values(dst)[0, 0] == 1.5


def test_accumulation_is_fp32() -> None:
    big = filled(np.full((1, 1), 2.0**12, np.float32), kind="bfloat16")
    small = filled(np.full((1, 1), 1.0, np.float32), kind="bfloat16")
    dst = empty((1, 1), region=PSUM)
    nc_matmul(dst, big, big)  # 2^24
    nc_matmul(dst, small, small)
    assert values(dst)[0, 0] == 2.0**24  # 2^24 + 1 is no fp32 number
    two = filled(np.full((1, 1), 2.0, np.float32), kind="bfloat16")
    nc_matmul(dst, small, two)
    assert values(dst)[0, 0] == 2.0**24 + 2


@pytest.mark.parametrize("mode", [1, 0, "True", None, np.True_])
def test_accumulate_takes_booleans(mode: object) -> None:
    a, b = _ones()
    dst = _psum()
    nc_matmul(dst, a, b)
    if mode is None or isinstance(mode, np.bool_):
        nc_matmul(dst, a, b, accumulate=mode)  # type: ignore[arg-type]
        assert values(dst)[0, 0] == 6
    else:
        with expect_refusal("arguments", "True, False or None", kind=TypeError):
            nc_matmul(dst, a, b, accumulate=mode)  # type: ignore[arg-type]
