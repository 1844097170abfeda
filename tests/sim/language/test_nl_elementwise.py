"""`nl.add` and its kind: operator tokens, published examples, NumPy and ml_dtypes as the judges."""

from __future__ import annotations

import copy

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn.sim import modules, recording
from dslearn.sim.language.results import promote
from dslearn.sim.language.tokens import BINARY, NAMES, TOKENS, UNARY
from dslearn.sim.numerics.activations import FUNCTIONS
from dslearn.sim.numerics.alu import OPS
from tests.support.sim import HBM, PSUM, expect_refusal, filled, values

NKI = modules.build()
nl, nisa = NKI["nki.language"], NKI["nki.isa"]


def full(value: float) -> object:
    return nl.full((128, 16), value, dtype=nl.float32, buffer=nl.sbuf)


def test_tokens_are_compared_hashed_copied_and_shown_by_name():
    assert nl.add == TOKENS["add"] and nl.add != nl.subtract and nl.add != "add"
    assert copy.deepcopy(nl.add) == nl.add and len({nl.add, copy.copy(nl.add), nl.exp}) == 2
    assert (nl.add.op, nl.add.__name__, repr(nl.add)) == ("add", "add", "nl.add")
    assert "x + y" in nl.add.__doc__


def test_every_operator_of_the_hardware_has_a_token():
    assert set(OPS) | set(FUNCTIONS) <= set(TOKENS)
    assert set(TOKENS) == {*BINARY, *UNARY, *NAMES}
    for name in NAMES:
        with expect_refusal("arguments", "computes nothing"):
            TOKENS[name](full(1.0))


# (call, arguments, result) of the published examples.
EXAMPLES = [
    ("add", (3.0, 2.0), 5.0), ("subtract", (10.0, 3.0), 7.0), ("multiply", (3.0, 4.0), 12.0),
    ("maximum", (3.0, 5.0), 5.0), ("minimum", (3.0, 5.0), 3.0), ("exp", (0.0,), 1.0),
    ("log", (1.0,), 0.0), ("sqrt", (4.0,), 2.0), ("rsqrt", (4.0,), 0.5),
    ("reciprocal", (4.0,), 0.25), ("sin", (0.0,), 0.0), ("cos", (0.0,), 1.0), ("tan", (0.0,), 0.0),
    ("arctan", (0.0,), 0.0), ("ceil", (3.2,), 4.0), ("ceil", (-3.7,), -3.0), ("floor", (3.7,), 3.0),
    ("floor", (-3.2,), -4.0), ("trunc", (3.7,), 3.0), ("trunc", (-3.7,), -3.0),
    ("negative", (5.0,), -5.0), ("negative", (-3.0,), 3.0), ("sign", (-5.0,), -1.0),
]  # fmt: skip


@pytest.mark.parametrize("name, given_, result", EXAMPLES)
def test_published_examples(name, given_, result):
    out = getattr(nl, name)(*[full(v) for v in given_])
    assert out.buffer is nl.sbuf and out.dtype == nl.float32 and out.shape == (128, 16)
    assert (values(out) == result).all()
    if len(given_) == 2:
        assert (values(getattr(nl, name)(full(given_[0]), given_[1])) == result).all()
        assert (values(getattr(nl, name)(given_[0], full(given_[1]))) == result).all()


NUMPY_BINARY = {n: getattr(np, n) for n in BINARY if n in OPS and hasattr(np, n)}


@pytest.mark.parametrize("name", sorted(set(NUMPY_BINARY) - {"power"}))
def test_binary_functions_are_numpys(name):
    rng = np.random.default_rng(7)
    kind = np.int32 if OPS[name].kind == "bitvec" else np.float32
    x = rng.integers(0, 30, (5, 7)).astype(kind)
    y = rng.integers(0, 30, (5, 7)).astype(kind)
    expected = NUMPY_BINARY[name](x, y).astype(kind)
    assert np.array_equal(values(TOKENS[name](filled(x), filled(y))), expected)
    three = 3 if kind is np.int32 else 3.0
    right = NUMPY_BINARY[name](x, np.array(three, kind)).astype(kind)
    left = NUMPY_BINARY[name](np.array(three, kind), x).astype(kind)
    assert np.array_equal(values(TOKENS[name](filled(x), three)), right)
    assert np.array_equal(values(TOKENS[name](three, filled(x))), left)


def test_power_by_a_number_is_power_by_a_tile():
    x = filled(np.array([[1.5, 2.0, 3.0]], np.float32))
    assert np.array_equal(values(nl.power(x, 2.0)), [[2.25, 4.0, 9.0]])
    assert np.array_equal(values(nl.power(2.0, x)), np.float32([[2**1.5, 4.0, 8.0]]))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20))
def test_rounding_functions_are_numpys(numbers):
    x = np.array([numbers], np.float32)
    for name in ("floor", "ceil", "trunc"):
        assert np.array_equal(values(TOKENS[name](filled(x))), getattr(np, name)(x))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-3.125, 3.125, width=32), min_size=1, max_size=20))
def test_sines_within_their_table(numbers):
    x = np.array([numbers], np.float32)
    assert np.abs(values(nl.sin(filled(x))) - np.sin(x.astype(np.float64))).max() < 2e-7
    assert np.abs(values(nl.cos(filled(x))) - np.cos(x.astype(np.float64))).max() < 3e-7


@pytest.mark.parametrize("name", sorted(set(UNARY) & set(FUNCTIONS) - {"copy"}))
def test_unary_functions_round_once_to_the_result_dtype(name):
    x = np.linspace(0.1, 1.5, 21, dtype=np.float32)[None, :]
    wide = values(TOKENS[name](filled(x)))
    narrow = values(TOKENS[name](filled(x), dtype=nl.bfloat16))
    assert narrow.dtype == ml_dtypes.bfloat16
    assert np.array_equal(narrow, wide.astype(ml_dtypes.bfloat16))


def test_copies_stay_in_their_memory_and_keep_bits():
    x = np.array([[np.nan, -0.0, np.inf]], np.float32)
    assert values(nl.copy(filled(x))).tobytes() == x.tobytes()
    assert nl.copy(filled(x, PSUM)).buffer is nl.psum
    halves = filled([[2.5, 3.5]], kind="float32")
    assert values(nl.copy(halves, dtype=nl.int32)).tolist() == [[2, 4]]


@pytest.mark.parametrize(
    "a, b, result",
    [
        ("float32", "bfloat16", "float32"), ("bfloat16", "int32", "bfloat16"),
        ("float16", "bfloat16", "float32"), ("int8", "int32", "int32"),
        ("float8_e4m3", "float8_e5m2", "float32"), ("uint8", "uint8", "uint8"),
    ],
)  # fmt: skip
def test_results_of_two_dtypes(a, b, result):
    assert promote(nl.DType(a), nl.DType(b)) == promote(nl.DType(b), nl.DType(a)) == result
    out = nl.add(filled([[1, 2]], kind=a), filled([[3, 4]], kind=b))
    assert out.dtype == result and values(out).astype(float).tolist() == [[4, 6]]


def test_comparisons_have_the_dtype_of_the_input_unless_asked():
    x = filled(np.array([[1.0, 2.0, 3.0]], np.float32))
    assert values(nl.less(x, 2.0)).tolist() == [[1.0, 0.0, 0.0]]
    mask = nl.greater_equal(x, 2.0, dtype=nl.uint8)
    assert mask.dtype == nl.uint8 and values(mask).tolist() == [[0, 1, 1]]


def test_int32_additions_are_exact():
    big = filled(np.array([[2**24 + 1, 2**31 - 1]], np.int32))
    assert values(nl.add(big, filled(np.array([[2, 1]], np.int32)))).tolist() == [
        [2**24 + 3, -(2**31)]
    ]


@pytest.mark.parametrize(
    "call, rule, words",
    [
        (lambda x, y: nl.divide(x, y), "engine", "nisa.reciprocal"),
        (lambda x, y: nl.mod(x, y), "engine", "nl.floor"),
        (lambda x, y: nl.fmod(x, 2.0), "engine", "nl.trunc"),
        (lambda x, y: nl.abs_max(x, y), "platform", "trn3"),
        (lambda x, y: nl.add(x, y[:, 0:1]), "shape", "do not broadcast"),
        (lambda x, y: nl.add(1.0, 2.0), "arguments", "at least one must be a tile"),
        (lambda x, y: nl.exp(3.0), "arguments", "must be a tensor"),
        (lambda x, y: nl.exp(filled(np.zeros((2, 2), np.float32), HBM)), "region", "private_hbm"),
        (lambda x, y: nl.rsqrt(filled(np.ones((2, 2), np.float32), PSUM)), "engine", "rsqrt"),
        (lambda x, y: nl.bitwise_and(x, y), "dtype", "integers"),
        (lambda x, y: nisa.tensor_tensor(x, x, y, op="add"), "arguments", "nl.add"),
        (lambda x, y: nisa.tensor_tensor(x, x, y, op=nl.cos), "engine", "cos"),
    ],
)
def test_what_no_engine_does_is_refused_with_a_way_out(call, rule, words):
    x, y = full(2.0), full(3.0)
    assert (values(nl.add(x, y[:, 0:1].broadcast(1, 16))) == 5.0).all()
    with expect_refusal(rule, words):
        call(x, y)


def test_one_function_is_one_instruction():
    with recording() as launches:
        NKI["nki"].jit(lambda x: [nl.add(full(1.0), 2.0), nl.exp(full(1.0)), x][2])(
            np.zeros(1, np.float32)
        )
    names = [i.name for i in launches[0].cores[0]]
    assert names == ["memset", "tensor_scalar", "memset", "activation"]
