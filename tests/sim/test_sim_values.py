"""Tensors and registers have no value for Python: operators, truth, comparisons, iteration."""

from __future__ import annotations

import operator

import numpy as np
import pytest

from dslearn.sim import modules
from tests.support.sim import expect_refusal, filled, values

NKI = modules.build()
nl, nisa = NKI["nki.language"], NKI["nki.isa"]

UNARY = [bool, int, float, len, iter, abs, operator.index, operator.neg, operator.invert, list]
BINARY = [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod,
    operator.pow, operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift,
    operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne,
]  # fmt: skip
KINDS = {
    "operators": lambda: filled(np.full((1, 1), 3, np.int32)),
    "register": lambda: nisa.register_alloc(3),
}


@pytest.mark.parametrize("rule", KINDS)
@pytest.mark.parametrize("function", UNARY, ids=lambda f: f.__name__)
def test_python_does_not_see_the_value(rule, function):
    with expect_refusal(rule, kind=TypeError):
        function(KINDS[rule]())


@pytest.mark.parametrize("rule", KINDS)
@pytest.mark.parametrize("function", BINARY, ids=lambda f: f.__name__)
def test_python_does_not_compute_with_it(rule, function):
    value, other = KINDS[rule](), KINDS[rule]()
    for pair in ((value, 3), (3, value), (value, 3.5), (value, other), (np.float32(3), value)):
        with expect_refusal(rule, kind=TypeError):
            function(*pair)


@pytest.mark.parametrize("rule", KINDS)
def test_it_may_be_compared_with_none_and_kept(rule):
    value = KINDS[rule]()
    same = value
    assert operator.ne(value, None) and operator.ne(None, value) and not operator.eq(value, None)
    assert value == same and value != "auto"
    assert {value: "kept"}[value] == "kept" and value in (None, value)


def test_augmented_assignment_is_refused_and_the_instruction_is_not():
    tile = filled(np.ones((4, 2), np.float32))
    with expect_refusal("operators", "compute with nisa.*", kind=TypeError):
        tile += 1
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)
    assert np.array_equal(values(tile), np.full((4, 2), 2, np.float32))
