"""Operator arguments: what counts as an operator, and the refusals that name what to do."""

from __future__ import annotations

import numpy as np
import pytest

from dslearn.sim.isa import ops
from dslearn.sim.numerics.alu import OPS
from dslearn.sim.rules import NotSupportedError
from tests.support.isa import nl
from tests.support.sim import expect_refusal


def test_tokens_and_plain_functions_name_an_operator() -> None:
    def add(x: float, y: float) -> float:
        return x + y

    def max(x: object, axis: int) -> None:
        """Stands for nl.max, which is a function over axes."""

    assert ops.alu(nl.add, "op") is OPS["add"]
    assert ops.alu(add, "op") is OPS["add"]
    assert ops.alu(max, "op") is OPS["maximum"]


@pytest.mark.parametrize("value", ["add", np.add, 3, None, max])
def test_what_is_no_token_is_refused(value: object) -> None:
    with expect_refusal("arguments", "nl functions", kind=TypeError):
        ops.alu(value, "tensor_tensor op")


@pytest.mark.parametrize(
    ("name", "words"),
    [("divide", "reciprocal"), ("mod", "bitwise_and"), ("fmod", "bitwise_and"), ("exp", "activ")],
)
def test_operators_that_no_alu_has(name: str, words: str) -> None:
    with expect_refusal("engine", f"unsupported operator '{name}'", words):
        ops.alu(getattr(nl, name), "tensor_scalar op0")


@pytest.mark.parametrize("name", ["square", "relu", "abs_max", "abs_min"])
def test_operators_of_trn3(name: str) -> None:
    with expect_refusal("platform", "trn3", kind=NotSupportedError):
        ops.alu(getattr(nl, name), "op")


def test_arity_and_class() -> None:
    assert ops.arithmetic(nl.abs, "op", arity=1).name == "abs"
    with expect_refusal("operand", "takes 1"):
        ops.alu(nl.abs, "op", arity=2)
    with expect_refusal("operand", "arithmetic"):
        ops.arithmetic(nl.bitwise_and, "op")


def test_activation_functions_and_choices() -> None:
    assert ops.function(nl.exp, "op") == "exp"
    with expect_refusal("engine", "Scalar engine"):
        ops.function(nl.add, "op")
    assert ops.one_of(nl.average, "op", ("average", "add")) == "average"
    with expect_refusal("operand", "nl.add"):
        ops.one_of(nl.multiply, "op", ("add",))
