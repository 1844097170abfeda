"""What a reproducer needs to run on its own: inputs drawn by seed, and one compile compared.

Reproducers carry a copy of this file, so it imports nothing but torch and NumPy. The rest of the
workshop tries graphs with the same functions: what it finds is what the reproducer shows.
"""

from __future__ import annotations

import argparse
import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

FLOATS = (0.0, -0.0, 1e-30, -1e-30, 1e-42, float("inf"), float("-inf"), float("nan"))
# Relative and absolute difference allowed, those of torch.testing; other dtypes: bit for bit.
TOLERANCES = {
    torch.float64: (1e-7, 1e-7),
    torch.float32: (1.3e-6, 1e-5),
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
}
Tolerance = tuple[float, float] | None


@dataclass(frozen=True)
class Spec:
    """An input: its layout, and between which bounds (inclusive) its values are drawn.

    Inputs of the same `storage` are views of one memory.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    low: float
    high: float
    storage: int
    offset: int = 0

    def alone(self, storage: int) -> Spec:
        """The same in a memory of its own."""
        return replace(self, storage=storage, offset=0)

    @property
    def end(self) -> int:
        """Elements of the storage up to the last one that is shown."""
        if 0 in self.shape:
            return self.offset
        reach = sum((n - 1) * step for n, step in zip(self.shape, self.stride, strict=True))
        return self.offset + reach + 1


def draw(specs: Sequence[Spec], seed: int, special: int = 0) -> list[Tensor]:
    """The same tensors for the same seed on every machine.

    Args:
        specs: the inputs.
        seed: a number from 0.
        special: how many values of `FLOATS` are sprinkled over float inputs, one element in
            eight; integers then get their bounds.
    """
    generator = np.random.default_rng(seed)
    memory: dict[int, Tensor] = {}
    for spec in specs:
        if spec.storage not in memory:
            sharing = [one for one in specs if one.storage == spec.storage]
            size = max(one.end for one in sharing)
            whole = _numbers(generator, spec, size, special)
            # torch compiles a tensor and views of it differently from views alone: an input that
            # shows all of the memory is no view.
            for one in sharing:
                if one.offset == 0 and math.prod(one.shape) == size:
                    layout = 0, one.shape, one.stride
                    whole = torch.empty(0, dtype=one.dtype).set_(whole.untyped_storage(), *layout)
            memory[spec.storage] = whole
    return [_view(memory[spec.storage], spec) for spec in specs]


def _view(whole: Tensor, spec: Spec) -> Tensor:
    if (whole.shape, whole.stride(), spec.offset) == (spec.shape, spec.stride, 0):
        return whole
    return whole.as_strided(spec.shape, spec.stride, spec.offset)


def _numbers(generator: np.random.Generator, spec: Spec, size: int, special: int) -> Tensor:
    """Integers alone are drawn: they are the same on every processor."""
    if spec.dtype.is_floating_point:
        parts = generator.integers(0, 2**24, size) / (2**24 - 1)
        numbers: Any = spec.low + (spec.high - spec.low) * parts
        edges: Any = FLOATS[:special]
    else:
        numbers = generator.integers(int(spec.low), int(spec.high), size, np.int64, endpoint=True)
        edges = (int(spec.low), int(spec.high))
    if special:
        at = generator.integers(0, 8, size) == 0
        numbers[at] = np.array(edges, numbers.dtype)[generator.integers(0, len(edges), at.sum())]
    return torch.from_numpy(numbers).to(spec.dtype)


@dataclass(frozen=True)
class Difference:
    """The first element that differs: what it is of, where, its values, how many more there are."""

    what: str
    index: tuple[int, ...]
    got: Any
    expected: Any
    count: int
    of: int

    def __str__(self) -> str:
        at = f" {list(self.index)}: " if self.index else ": "
        many = f"{self.count} of {self.of} differ"
        return f"{self.what}{at}{self.got!r} instead of {self.expected!r} ({many})"


def difference(
    what: str, expected: Tensor, got: Any, tolerance: Tolerance = None
) -> Difference | None:
    """Where `got` differs first from `expected`; NaN equals NaN.

    Floats may differ by `tolerance` (relative, absolute), by default that of their dtype in
    `TOLERANCES`; everything else is compared bit for bit.
    """
    forms = [
        (t.dtype, list(t.shape)) if isinstance(t, Tensor) else type(t) for t in (got, expected)
    ]
    if forms[0] != forms[1]:
        return Difference(what, (), forms[0], forms[1], expected.numel(), expected.numel())
    relative, absolute = tolerance or TOLERANCES.get(expected.dtype, (0.0, 0.0))
    if expected.dtype.is_floating_point and expected.dtype.itemsize == 1:  # no arithmetic on fp8
        wrong = expected.view(torch.uint8) != got.view(torch.uint8)
    else:
        wrong = ~torch.isclose(got, expected, relative, absolute, equal_nan=True)
    if not wrong.any():
        return None
    index = tuple(wrong.nonzero()[0].tolist())
    if str(expected.dtype).startswith("torch.float4"):  # pairs, which are no number: their codes
        got, expected = got.view(torch.uint8), expected.view(torch.uint8)
    values = got[index].item(), expected[index].item()
    return Difference(what, index, *values, int(wrong.sum()), wrong.numel())


def compare(
    expected: Sequence[Any],
    got: Sequence[Any],
    inputs: tuple[Sequence[Any], Sequence[Any]],
    tolerance: Tolerance = None,
) -> Difference | None:
    """The first difference of outputs, and of (`inputs` of eager, of compiled) after the call."""
    if len(expected) != len(got):
        return Difference("number of outputs", (), len(got), len(expected), 1, 1)
    pairs = [(f"output {i}", a, b) for i, (a, b) in enumerate(zip(expected, got, strict=True))]
    after = enumerate(zip(*inputs, strict=True))
    pairs += [(f"input {i} after the call", a, b) for i, (a, b) in after]
    for what, a, b in pairs:
        found = difference(what, a, b, tolerance) if isinstance(a, Tensor) else None
        if found:
            return found
    return None


def attempt(
    backend: Callable[..., Any],
    module: fx.GraphModule,
    specs: Sequence[Spec],
    seed: int,
    tolerance: Tolerance = None,
) -> tuple[str, str]:
    """Compile once, run once, compare with eager.

    Returns:
        What happened and how it shows: "passed" and nothing, "crash" and the error, "wrong" and
        the first difference, "invalid" and the error where eager itself fails.
    """
    with torch.no_grad():
        inputs, others = draw(specs, seed), draw(specs, seed)
        try:
            expected = module(*inputs)
        except Exception as error:
            return "invalid", f"{type(error).__name__}: {error}"
        try:
            got = backend(module, others)(*others)
        except Exception as error:  # whatever a compiler raises is its crash
            return "crash", f"{type(error).__name__}: {error}"
        found = compare(expected, got, (inputs, others), tolerance)
    return ("wrong", str(found)) if found else ("passed", "")


def named(backend: str) -> Callable[..., Any]:
    """The backend that torch.compile knows by this name, or MODULE:FUNCTION."""
    home, colon, name = backend.partition(":")
    if colon:
        found: Callable[..., Any] = getattr(importlib.import_module(home), name)
        return found
    return torch._dynamo.lookup_backend(backend)


def main(
    graph: Callable[..., Any], specs: Sequence[Spec], seed: int, tolerance: Tolerance = None
) -> int:
    """The command line of a reproducer: 0 if every compile passes, else 1."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", required=True, help="a torch.compile backend, MODULE:FUNCTION")
    parser.add_argument("--compiles", type=int, default=1)
    given = parser.parse_args()
    backend, failed = named(given.backend), 0
    for i in range(1, given.compiles + 1):
        kind, text = attempt(backend, fx.symbolic_trace(graph), specs, seed, tolerance)
        failed += kind != "passed"
        print(f"compile {i}: {kind} {' '.join(text.split())}".rstrip(), flush=True)
    print(f"{failed} of {given.compiles} compiles failed")
    return 1 if failed else 0
