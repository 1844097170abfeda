"""Activation functions: torch in float64 and its autograd as oracles, limits, domains."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from dslearn.sim.numerics import activations
from dslearn.sim.numerics.activations import DOMAINS, FUNCTIONS, activate, outside

POINTS = np.concatenate(
    [np.linspace(-12, 12, 4001), [-100, -30, -1e-3, 1e-30, 0.0, 1e-3, 30, 80]]
).astype(np.float32)
TORCH = {
    "copy": lambda x: x,
    "square": torch.square,
    "sigmoid": torch.sigmoid,
    "relu": F.relu,
    "prelu": F.relu,
    "gelu": F.gelu,
    "gelu_apprx_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_apprx_sigmoid": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": F.silu,
    "tanh": torch.tanh,
    "softplus": lambda x: F.softplus(x, threshold=200),
    "mish": F.mish,
    "erf": torch.erf,
    "exp": torch.exp,
    "log": torch.log,
    "sin": torch.sin,
    "arctan": torch.arctan,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "sign": torch.sign,
    "abs": torch.abs,
}
DERIVATIVES = {
    "gelu_dx": "gelu",
    "gelu_apprx_sigmoid_dx": "gelu_apprx_sigmoid",
    "silu_dx": "silu",
    "erf_dx": "erf",
}


def inside(name):
    x = POINTS[~outside(name, POINTS)]
    return x[x > 0] if name in ("log", "sqrt", "rsqrt") else x


@pytest.mark.parametrize("name", sorted(TORCH))
def test_functions_equal_torch_in_float64(name):
    x = inside(name)
    assert x.size > 200
    got, expected = activate(name, x), TORCH[name](torch.from_numpy(x).double()).float().numpy()
    assert got.dtype == np.float32
    # One unit in the last place; torch's gelu loses its left tail to 1 + erf and 1 + tanh.
    smallest = 1e-14 if name in ("gelu", "gelu_apprx_tanh") else 2e-45
    np.testing.assert_allclose(got, expected, rtol=1.3e-7, atol=smallest)


@pytest.mark.parametrize("name", sorted(DERIVATIVES))
def test_derivatives_equal_autograd(name):
    x = torch.from_numpy(POINTS).double().requires_grad_()
    TORCH[DERIVATIVES[name]](x).sum().backward()
    expected = x.grad.float().numpy()
    np.testing.assert_allclose(activate(name, POINTS), expected, rtol=1e-6, atol=1e-7)


def test_every_function_has_a_second_derivation():
    assert set(FUNCTIONS) == set(TORCH) | set(DERIVATIVES)
    assert set(DOMAINS) <= set(FUNCTIONS)


def test_gelu_keeps_its_left_tail():
    x = np.array([-3, -9, -12], dtype=np.float32)
    expected = [np.float32(v * 0.5 * math.erfc(-v / math.sqrt(2))) for v in x.tolist()]
    assert activate("gelu", x).tolist() == pytest.approx(expected, rel=1e-6)
    u = math.sqrt(2 / math.pi) * (-3 + 0.044715 * -27)
    assert activate("gelu_apprx_tanh", x)[0] == np.float32(-3 / (1 + math.exp(-2 * u)))


def test_erf_is_the_standard_librarys():
    x = np.linspace(-6, 6, 999).astype(np.float32).reshape(27, 37)
    expected = np.array([math.erf(v) for v in x.ravel().tolist()]).astype(np.float32)
    assert np.array_equal(activate("erf", x).ravel(), expected)


@pytest.mark.parametrize(
    ("name", "left", "right"),
    [
        ("sigmoid", 0, 1),
        ("relu", 0, math.inf),
        ("gelu", 0, math.inf),
        ("gelu_dx", 0, 1),
        ("gelu_apprx_tanh", 0, math.inf),
        ("gelu_apprx_sigmoid", 0, math.inf),
        ("gelu_apprx_sigmoid_dx", 0, 1),
        ("silu", 0, math.inf),
        ("silu_dx", 0, 1),
        ("tanh", -1, 1),
        ("softplus", 0, math.inf),
        ("mish", 0, math.inf),
        ("erf", -1, 1),
        ("erf_dx", 0, 0),
        ("exp", 0, math.inf),
        ("sign", -1, 1),
        ("abs", math.inf, math.inf),
        ("copy", -math.inf, math.inf),
    ],
)
def test_limits_at_infinity_and_nan(name, left, right, recwarn):
    got = activate(name, np.array([-np.inf, -3e38, 3e38, np.inf, np.nan], dtype=np.float32))
    assert got[[0, 3]].tolist() == [left, right]
    assert not np.isnan(got[1:3]).any()
    assert np.isnan(got[4])
    assert not recwarn.list


def test_values_at_the_edge_of_a_domain():
    x = np.array([0, -1], dtype=np.float32)
    assert activate("sqrt", x)[0] == 0
    assert activate("log", x)[0] == -np.inf
    assert activate("rsqrt", x)[0] == activate("reciprocal", x)[0] == np.inf
    for name in ("sqrt", "log", "rsqrt"):
        assert np.isnan(activate(name, x)[1])


def test_sin_has_no_range_reduction():
    pi = np.float32(np.pi)
    x = np.array([-pi, pi, np.nextafter(pi, np.float32(4)), -4], dtype=np.float32)
    got = activate("sin", x)
    assert np.abs(got[:2]).max() < 1e-6
    assert np.isnan(got[2:]).all()


@pytest.mark.parametrize(
    ("name", "valid", "invalid"),
    [
        ("log", [2.0**-64, 2.0**64], [0, -1, 2.0**-65, 2.0**65]),
        ("sqrt", [2.0**-116, 2.0**118], [0, 2.0**-117, 2.0**119]),
        ("rsqrt", [2.0**-87, 2.0**97], [0, 2.0**-88, 2.0**98]),
        ("reciprocal", [2.0**-42, -(2.0**-42), -(2.0**42)], [0, 2.0**-43, -(2.0**43)]),
        ("arctan", [1.57, -1.57], [1.58, -1.58, np.inf]),
        ("sin", [3.14, -3.14], [3.15, np.inf]),
        ("exp", [-1e30, 1e30, np.inf], []),
    ],
)
def test_domains(name, valid, invalid):
    assert not outside(name, np.array(valid + [np.nan], dtype=np.float32)).any()
    assert outside(name, np.array(invalid, dtype=np.float32)).all()


def test_no_element_and_one_element():
    for name in activations.FUNCTIONS:
        assert activate(name, np.zeros((4, 0), dtype=np.float32)).shape == (4, 0)
        assert activate(name, np.ones((1, 1), dtype=np.float32)).shape == (1, 1)


@pytest.mark.parametrize(
    ("name", "slow"),
    [
        ("erf", math.erf),
        ("gelu", lambda v: v * 0.5 * math.erfc(-v * math.sqrt(0.5))),
        (
            "gelu_dx",
            lambda v: (
                0.5 * math.erfc(-v * math.sqrt(0.5))
                + v * math.exp(-0.5 * v * v) / math.sqrt(2 * math.pi)
            ),
        ),
    ],
)
def test_tables_give_the_numbers_of_the_standard_library(name, slow):
    draw = np.random.default_rng(len(name))
    special = [0, -0.0, 1e-45, -1e-45, 1e-38, 5.9999, 6, 6.0001, -6, 7, 11, 15.6, 16, 40, 3e38]
    x = np.concatenate(
        [draw.standard_normal(9000), draw.uniform(-9, 9, 9000), np.arange(-900, 900) / 128, special]
    ).astype(np.float32)
    expected = np.array([slow(v) for v in x.tolist()]).astype(np.float32)
    got = activate(name, x)
    assert np.array_equal(got, expected)
    for other in (np.asfortranarray(x[:600].reshape(20, 30)), x[:600:2]):
        assert np.array_equal(
            activate(name, other), activate(name, other.ravel()).reshape(other.shape)
        )
    assert np.array_equal(activate(name, x), got), "the argument or a table was overwritten"
