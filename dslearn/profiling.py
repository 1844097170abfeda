"""`dslearn profile`: which kernels have a name, and what they are called with.

Kernels are named by dslearn (`rmsnorm`) with one shape, or by a path (`package.module:function`)
with one shape per array. Inputs are random: the cost of a kernel without dynamic loops does not
depend on them.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from math import prod
from typing import Any, cast

import ml_dtypes
import numpy as np

from dslearn import kernels
from dslearn.errors import DslearnError, UsageError
from dslearn.sim import child, cost
from dslearn.sim.dtypes import NUMPY

Arguments = tuple[Any, ...]
MOST = 2**29  # elements of one array: what is simulated lies in memory, more than once


@dataclass(frozen=True)
class Case:
    """A kernel of dslearn: the names of its sizes, and its arguments for given sizes."""

    sizes: tuple[str, ...]
    arguments: Callable[..., Arguments]


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


def _normal(shape: tuple[int, ...], kind: Any) -> np.ndarray:
    return _rng().standard_normal(_possible(shape), np.float32).astype(kind)


def _bf16(*shape: int) -> np.ndarray:
    return _normal(shape, ml_dtypes.bfloat16)


def _bytes(*shape: int, low: int = 0, high: int = 120) -> np.ndarray:
    return _rng().integers(low, high, _possible(shape), np.uint8)


def _possible(shape: tuple[int, ...]) -> tuple[int, ...]:
    if prod(shape) > MOST:
        raise UsageError(
            f"--shape: an array {'x'.join(map(str, shape))} has more than {MOST} elements; "
            "profile a part of it"
        )
    return shape


def _fp8(rows: int, inputs: int, outputs: int) -> Arguments:
    scale = _bytes(-(-outputs // 32), -(-inputs // 32), low=115, high=125)
    return _bf16(rows, inputs), _bytes(outputs, inputs), scale


def _fp4(rows: int, inputs: int, outputs: int) -> Arguments:
    scale = _bytes(outputs, -(-inputs // 32), low=115, high=125)
    return _bf16(rows, inputs), _bytes(outputs, inputs // 2, high=255), scale


def _placed(arguments: Arguments, module: str, place: str) -> Arguments:
    """x, then the weight and scales as `place` of `dslearn.formats.<module>` puts them, and N."""
    from torch import from_numpy

    x, codes, scale = arguments
    placing = getattr(import_module(f"dslearn.formats.{module}"), place)
    weight, power = placing(from_numpy(codes), from_numpy(scale))
    return x, weight.numpy(), power.numpy(), len(codes)


def _placed_fp8(*sizes: int) -> Arguments:
    return _placed(_fp8(*sizes), "place", "place_fp8")


def _sparse_attn(rows: int, heads: int, dim: int, width: int, selected: int) -> Arguments:
    """One new token per row behind a full window, entries from twice as many as are selected."""
    held = np.arange(width + rows - 1, dtype=np.int32)[:, None]
    window, entries = _bytes(len(held), dim + dim // 32), _bytes(2 * selected, dim // 2 + dim // 16)
    chosen = _rng().integers(0, 2 * selected, (rows, selected)).astype(np.int32)
    sink = np.zeros((heads, 1), np.float32)
    position = held[width - 1 :].copy()
    return _bf16(rows, heads, dim), position, window, held, sink, width, True, entries, chosen


def _index_score(rows: int, heads: int, dim: int, entries: int) -> Arguments:
    weights = _rng().standard_normal((rows, heads), np.float32)
    return _bf16(rows, heads, dim), weights, _bytes(entries, dim // 2 + dim // 32), True, True


def _plain(rows: int, inputs: int, outputs: int) -> Arguments:
    """Rows and weight in bf16, as the head of a model in bf16 arithmetic."""
    from torch import from_numpy

    from dslearn.formats.place import place_codes

    # NumPy's bf16 is not torch's: the weight is placed as the 16-bit words that it is.
    words = place_codes(from_numpy(_bf16(outputs, inputs).view(np.int16))).numpy()
    return _bf16(rows, inputs), words.view(ml_dtypes.bfloat16), outputs


PRODUCT = ("rows", "inputs", "outputs")
CASES: dict[str, Case] = {
    "rmsnorm": Case(("rows", "columns"), lambda r, k: (_bf16(r, k), _bf16(k), 1e-6)),
    "swiglu": Case(("rows", "columns"), lambda r, k: (_bf16(r, k), _bf16(r, k), 10.0)),
    "naive_fp8": Case(PRODUCT, _fp8),
    "fp8_linear": Case(PRODUCT, _placed_fp8),
    "fp8_folded": Case(PRODUCT, _placed_fp8),
    "plain_linear": Case(PRODUCT, _plain),
    "naive_fp4": Case(PRODUCT, _fp4),
    "fp4_linear": Case(PRODUCT, lambda *s: _placed(_fp4(*s), "place_fp4", "place_fp4")),
    "fp4_widened": Case(PRODUCT, lambda *s: _placed(_fp4(*s), "place_fp4", "place_widened")),
    "sparse_attn": Case(("rows", "heads", "dim", "window", "selected"), _sparse_attn),
    "index_score": Case(("rows", "heads", "dim", "entries"), _index_score),
}


def named(kernel: str, shapes: list[str]) -> tuple[Any, Arguments]:
    """A kernel by its name here or its path, and arguments of these shapes.

    Args:
        kernel: a key of `CASES`, or `module:function`.
        shapes: for a name, one shape such as `1x1280x36864` of its sizes; for a path one per array,
            with a dtype (`64x5120:bfloat16`, fp32 without), or a number: `1e-6`, `7:int`.
    Raises:
        UsageError: an unknown kernel, or shapes that do not fit, the kernel or this machine.
    """
    if ":" in kernel:
        found, arguments = _load(kernel), tuple(_argument(text) for text in shapes)
        _bound(kernel, found, arguments)
        return found, arguments
    case = CASES.get(kernel)
    if case is None:
        known = ", ".join(CASES)
        raise UsageError(f"no kernel {kernel!r}: one of {known}, or a path module:function")
    wanted = "x".join(size.upper() for size in case.sizes)
    if len(shapes) != 1:
        raise UsageError(f"{kernel} takes one --shape {wanted}")
    sizes = _sizes(shapes[0])
    if len(sizes) != len(case.sizes):
        raise UsageError(f"--shape {shapes[0]}: {kernel} takes {wanted}")
    return getattr(import_module(f"dslearn.kernels.{kernel}"), kernel), case.arguments(*sizes)


def profile(kernel: str, shapes: list[str], cores: int) -> cost.Profile:
    """Simulate and model a kernel; see `named`.

    Always on the stand-in, in a child process where the vendor's `nki` is installed.

    Raises:
        UsageError: see `named`.
        KernelError: the hardware would refuse what the kernel does.
    """
    if kernels.NKI.real:
        return cast(cost.Profile, child.call("dslearn.profiling:profile", kernel, shapes, cores))
    try:
        found, arguments = named(kernel, shapes)
        return cost.profile(found[cores], *arguments)
    except DslearnError:
        raise
    except (AssertionError, TypeError) as error:
        raise UsageError(f"{kernel} with --shape {' '.join(shapes)}: {error}") from error
    except MemoryError as error:
        wanted = f"{kernel} with --shape {' '.join(shapes)}"
        raise UsageError(f"{wanted} does not fit into memory; profile a part of it") from error


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does
    try:
        home = import_module(module)
    except Exception as error:  # whatever the user's module raises
        raise UsageError(f"{path}: {type(error).__name__}: {error}") from error
    found = getattr(home, name, None)
    if found is None:
        raise UsageError(f"{path}: {module} has no {name!r}")
    if not hasattr(found, "sign"):
        raise UsageError(f"{path} is no kernel: mark it with @nki.jit")
    return found


def _bound(kernel: str, found: Any, arguments: Arguments) -> None:
    try:
        found.sign.bind(*arguments)
    except TypeError as error:
        names = list(found.sign.parameters)
        least = sum(one.default is one.empty for one in found.sign.parameters.values())
        count = f"{len(names)}" if least == len(names) else f"{least} to {len(names)}"
        raise UsageError(
            f"{kernel} takes {count} arguments ({', '.join(names)}), {len(arguments)} given: each "
            "wants one --shape, an array as 64x5120, a number as 1e-6 or 7:int"
        ) from error


def _sizes(text: str) -> tuple[int, ...]:
    sizes = [int(part) if part.isdecimal() else 0 for part in text.split("x")]
    if min(sizes) < 1:
        raise UsageError(f"--shape {text}: whole numbers from 1, as in 64x5120")
    return tuple(sizes)


def _argument(text: str) -> Any:
    shape, _, dtype = text.partition(":")
    number = _number(shape)
    if dtype == "int":
        if not isinstance(number, int):
            raise UsageError(f"--shape {text}: before :int stands a whole number, as in 7:int")
        return number
    if isinstance(number, float):
        return number
    kind = NUMPY.get(dtype or "float32")
    if kind is None:
        raise UsageError(f"--shape {text}: dtypes are {', '.join(NUMPY)}, or int for a number")
    if kind.kind in "iu":
        return _rng().integers(0, 100, _possible(_sizes(shape))).astype(kind)
    return _normal(_sizes(shape), kind)


def _number(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return None
