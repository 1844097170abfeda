"""The Scalar engine's functions: fp32 in, fp32 out.

The hardware interpolates tables (relative error 1e-6 to 1e-5); these are computed in float64 and
rounded once, so that the same bytes come out on every CPU: NumPy's fp32 functions depend on its
vector instructions. Limits hold at the ends: silu(-inf) is 0, not NaN. Source:
docs/reference/nki.md, "Activation functions".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from dslearn.sim.numerics.casts import Array

Function = Callable[[Array], Array]

ROOT_HALF = math.sqrt(0.5)
GELU_TANH = 2 * math.sqrt(2 / math.pi)  # (1 + tanh(u)) / 2 is sigmoid(2 u), without cancellation
GELU_SIGMOID = 1.702
CUBIC = 0.044715
# Beyond +-1000 every gate is 0 or 1 in fp32; cutting there keeps inf * 0 out of the products.
FAR = 1000.0
PI = float(np.float32(math.pi))  # the fp32 number, slightly more than pi, is inside sin's domain


GRID = 1024  # entries per unit of the tables below
Table = list[Array]


def _taylor(lowest: int, values: Array, *derivatives: Array) -> Table:
    """A function at multiples of 1 / GRID from `lowest` on, as `_look_up` wants it.

    Args:
        lowest: where the table begins.
        values: the function, float64, one per entry; constant in fp32 outside the table.
        derivatives: coefficients of its Taylor series from the first power on.
    """
    scaled = (c / GRID**n for n, c in enumerate(derivatives, 1))  # counted in steps of 1 / GRID
    return [np.array(float(lowest * GRID)), values, *scaled]


def _grid(lowest: int, highest: int) -> Array:
    return np.arange(lowest * GRID, highest * GRID + 1) / GRID


def _look_up(table: Table, steps: Array) -> Array:
    """The function to 1e-12 of the result: its Taylor series at the nearest entry.

    Args:
        table: from `_taylor`.
        steps: arguments times GRID, float64; used up.
    """
    first, *series = table
    steps.clip(first, first + (series[0].size - 1), out=steps)
    nearest = np.rint(steps)
    steps -= nearest  # NaN stays here
    nearest -= first
    index = nearest.astype(np.intp)
    result = series[-1].take(index, mode="clip")
    for coefficient in series[-2::-1]:
        result *= steps
        result += coefficient.take(index, mode="clip", out=nearest)
    return result


def _bell(x: Array) -> list[Array]:
    """Taylor coefficients of erf, from the first power on."""
    first = 2 / math.sqrt(math.pi) * np.exp(-x * x)
    return [first, -x * first, (2 * x * x - 1) / 3 * first, x * (3 - 2 * x * x) / 6 * first]


@cache
def _erf_table() -> Table:
    """NumPy has no erf. It is +-1 in float64 from 6 on."""
    x = _grid(-6, 6)
    return _taylor(-6, np.array([math.erf(v) for v in x]), *_bell(x))


@cache
def _half_erfc_table() -> Table:
    """erfc(x) / 2 is 1 in float64 up to -6 and 0 in fp32 from 11 on."""
    x = _grid(-6, 11)
    return _taylor(-6, np.array([math.erfc(v) / 2 for v in x]), *(c / -2 for c in _bell(x)))


@cache
def _gelu_dx_table() -> Table:
    """normal_cdf(x) + x * density(x) is 0 in fp32 up to -16 and 1 from 7 on."""
    x = _grid(-16, 7)
    density = np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return _taylor(
        -16,
        _normal_cdf(x) + x * density,
        density * (2 - x**2),
        density * (x**3 - 4 * x) / 2,
        density * (7 * x**2 - x**4 - 4) / 6,
        density * (x**5 - 11 * x**3 + 18 * x) / 24,
    )


def _erf(x: Array) -> Array:
    return _look_up(_erf_table(), x * GRID)


def _normal_cdf(x: Array) -> Array:
    return _look_up(_half_erfc_table(), x * (-ROOT_HALF * GRID))


def _gelu_dx(x: Array) -> Array:
    return _look_up(_gelu_dx_table(), x * GRID)


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _softplus(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    rounded = 1 + small  # log(rounded) * small / (rounded - 1) is log1p, and faster than NumPy's
    tail = np.where(rounded > 1, np.log(rounded) * (small / (rounded - 1)), small)
    return np.maximum(x, 0) + tail


def _mish_gate(x: Array) -> Array:
    """tanh(softplus(x)), without either."""
    w = np.exp(np.minimum(x, 40))  # from 20 on the gate is 1
    product = w * (w + 2)
    return product / (product + 2)


def _gated_dx(x: Array, slope: float) -> Array:
    """Derivative of x * sigmoid(slope * x)."""
    x = x.clip(-FAR, FAR)
    gate = _sigmoid(slope * x)
    return gate * (1 + slope * x * (1 - gate))


def _gated(gate: Function) -> Function:
    """x * gate(x), for gates that go to 0 on the left faster than x grows."""

    def product(x: Array) -> Array:
        x = np.maximum(x, -FAR)
        result = gate(x)
        result *= x
        return result

    return product


def _relu(x: Array) -> Array:
    return np.maximum(x, np.float32(0))


def _sin(x: Array) -> Array:
    result = np.sin(x)
    np.copyto(result, np.nan, where=np.abs(x) > PI)
    return result


FUNCTIONS: dict[str, Function] = {
    "copy": lambda x: x,
    "square": np.square,
    "sigmoid": _sigmoid,
    "relu": _relu,
    "prelu": _relu,  # its slope is an argument of activate2 (trn3), 0 unless given
    "gelu": _gated(_normal_cdf),
    "gelu_dx": _gelu_dx,
    "gelu_apprx_tanh": _gated(lambda x: _sigmoid(GELU_TANH * (x + CUBIC * x * x * x))),
    "gelu_apprx_sigmoid": _gated(lambda x: _sigmoid(GELU_SIGMOID * x)),
    "gelu_apprx_sigmoid_dx": lambda x: _gated_dx(x, GELU_SIGMOID),
    "silu": _gated(_sigmoid),
    "silu_dx": lambda x: _gated_dx(x, 1.0),
    "tanh": np.tanh,
    "softplus": _softplus,
    "mish": _gated(_mish_gate),
    "erf": _erf,
    "erf_dx": lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x),
    "exp": np.exp,
    "log": np.log,
    "sin": _sin,
    "arctan": np.arctan,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": np.reciprocal,
    "sign": np.sign,
    "abs": np.abs,
}
EXACT_IN_FP32 = frozenset({"copy", "square", "relu", "prelu", "reciprocal", "sqrt", "sign", "abs"})


@dataclass(frozen=True)
class Domain:
    """Where the hardware's table is valid: lowest and highest input, of |x| if `magnitude`."""

    lowest: float
    highest: float
    magnitude: bool = False


DOMAINS: dict[str, Domain] = {
    "log": Domain(2.0**-64, 2.0**64),
    "sin": Domain(-PI, PI),
    "arctan": Domain(-PI / 2, PI / 2),
    "sqrt": Domain(2.0**-116, 2.0**118),
    "rsqrt": Domain(2.0**-87, 2.0**97),
    "reciprocal": Domain(2.0**-42, 2.0**42, magnitude=True),
}


def outside(name: str, x: Array) -> Array:
    """bool, shape of x: inputs for which the hardware's result is not valid; never for NaN."""
    domain = DOMAINS.get(name)
    if domain is None:
        return np.zeros(x.shape, dtype=bool)
    size = np.abs(x) if domain.magnitude else x
    return np.asarray((size < domain.lowest) | (size > domain.highest))


def activate(name: str, x: Array) -> Array:
    """The function on every element, rounded once to fp32.

    Outside its domain sin gives NaN (there is no range reduction to imitate); the others give the
    mathematical value, and `outside` says where the hardware would not.

    Args:
        name: a key of FUNCTIONS.
        x: fp32, any shape.
    Source: docs/reference/nki.md, "Activation functions".
    """
    with np.errstate(all="ignore"):
        if name in EXACT_IN_FP32:  # one correctly rounded fp32 operation is the same number
            return np.asarray(FUNCTIONS[name](x))
        return np.asarray(FUNCTIONS[name](x.astype(np.float64)), dtype=np.float32)
