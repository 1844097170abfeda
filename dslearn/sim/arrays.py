"""Arrays in, arrays out: NumPy and torch arguments as HBM tensors over the same memory.

torch is never imported: only a caller that passes its tensors has it.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np

from dslearn.sim import layout
from dslearn.sim.access import Place, storage_of
from dslearn.sim.dtypes import NUMPY, ONES, dtype
from dslearn.sim.memory import MemoryRegion
from dslearn.sim.rules import ArgumentError, RuleError
from dslearn.sim.tensor import NkiTensor


def is_torch(value: Any) -> bool:
    """Whether `value` is a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


class Inputs:
    """The array arguments of one call: their tensors, and the way back."""

    def __init__(self, region: MemoryRegion, names: tuple[str, ...]) -> None:
        self.region, self.names = region, names
        self.torch = False
        self.given: dict[int, tuple[Any, NkiTensor]] = {}  # by storage
        self.copies: list[tuple[Any, np.ndarray, np.ndarray]] = []  # caller's, ours, as it came

    def convert(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with every array replaced by its tensor."""
        named = [*self.names, *[f"input{i}" for i in range(len(args))]]
        positional = tuple(self._one(a, n) for a, n in zip(args, named, strict=False))
        return positional, {k: self._one(v, k) for k, v in kwargs.items()}

    def _one(self, value: Any, name: str) -> Any:
        if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
            return type(value)(self._one(v, f"{name}_{i}") for i, v in enumerate(value))
        if isinstance(value, dict):
            return {k: self._one(v, f"{name}_{k}") for k, v in value.items()}
        if not (isinstance(value, np.ndarray) or is_torch(value)):
            return value
        for given, tensor in self.given.values():
            if given is value:
                return tensor
        array, shared = _bytes_of(value)
        self.torch = self.torch or is_torch(value)
        kind = dtype(value.dtype)
        storage = storage_of(array, self.region, name)
        shape = tuple(value.shape) or (1,)
        tensor = NkiTensor(storage, kind, shape, layout.contiguous(shape), 0, name)
        self.given[storage.serial] = (value, tensor)
        if not shared:
            self.copies.append((value, array, array.copy()))
        return tensor

    def results(self, value: Any) -> Any:
        """What the kernel returned, as arrays; inputs it wrote are brought up to date."""
        for given, copy, before in self.copies:
            if not np.array_equal(copy, before):
                _copy_back(given, copy, before)
        return self._back(value)

    def _back(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {k: self._back(v) for k, v in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(self._back, value))
        if isinstance(value, tuple | list):
            return type(value)(self._back(v) for v in value)
        if not isinstance(value, NkiTensor):
            return value
        given = self.given.get(value.storage.serial)
        # Public kernels for one core return private_hbm too; of two cores' it would be one's own.
        two_cores = self.region is MemoryRegion.shared_hbm
        if value.on_chip or (two_cores and value.buffer is MemoryRegion.private_hbm):
            raise ArgumentError(
                f"the kernel returns {value!r}: results live in nl.shared_hbm", rule="region"
            )
        for loop in value.storage.ended.values():
            raise RuleError(
                f"the kernel returns {value!r}, allocated in a trip of {loop}: allocate results "
                "before the loop",
                rule="loop",
            )
        _warn_unwritten(value)
        if given is not None and given[1] is value:
            return given[0]
        array = _array(value)
        return _as_torch(array, value) if self.torch else array


def _warn_unwritten(t: NkiTensor) -> None:
    """Warn about elements of result `t` that no instruction wrote."""
    if t.storage.written is None:
        return
    full = ONES[t.itemsize]
    missing = int((Place(t).of(t.storage.written, full.dtype) != full).sum())
    if missing:
        warnings.warn(
            f"the kernel returns {t!r}, of which {missing} of {t.size} elements were never written",
            stacklevel=2,
        )


def _array(t: NkiTensor) -> np.ndarray:
    kind = NUMPY[t.dtype]
    steps = [s * kind.itemsize for s in t.strides]
    array = np.ndarray(t.shape, kind, t.storage.data, t.offset * kind.itemsize, steps)
    return array.view(np.bool_) if t.dtype == "bool_" else array


def _bytes_of(value: Any) -> tuple[np.ndarray, bool]:
    """Contiguous bytes of an array, and whether they are the caller's own memory."""
    if is_torch(value):
        torch = sys.modules["torch"]
        plain = value.detach().cpu().contiguous()
        shared = plain.data_ptr() == value.data_ptr()
        return plain.reshape(-1).view(torch.uint8).numpy(), shared
    plain = np.ascontiguousarray(value)
    shared = plain is value or np.shares_memory(plain, value)
    if not plain.flags.writeable:
        plain, shared = plain.copy(), False
    return plain.reshape(-1).view(np.uint8), shared


def _copy_back(given: Any, copy: np.ndarray, before: np.ndarray) -> None:
    """Write what a kernel changed to an array that it saw as a copy: other arguments may overlap.

    Raises:
        ArgumentError: the caller's array is read-only.
    """
    words = f"u{given.itemsize}"
    changed = (copy.view(words) != before.view(words)).reshape(given.shape)
    if is_torch(given):
        torch = sys.modules["torch"]
        mask, new = torch.from_numpy(changed), torch.from_numpy(copy).view(given.dtype)
        with torch.no_grad():
            given[mask] = new.reshape(given.shape)[mask]
    elif given.flags.writeable:
        given[changed] = copy.view(given.dtype).reshape(given.shape)[changed]
    else:
        raise ArgumentError(
            f"the kernel writes an argument of shape {given.shape} that is a read-only array: "
            "pass a copy",
            rule="arguments",
        )


def _as_torch(array: np.ndarray, t: NkiTensor) -> Any:
    torch = sys.modules["torch"]
    plain = np.ascontiguousarray(array)
    name = {"bool_": "bool", "tfloat32": "float32"}.get(t.dtype, str(t.dtype))
    target = getattr(torch, name, None)
    words = torch.from_numpy(plain.reshape(-1).view(np.uint8))
    return (words if target is None else words.view(target)).reshape(array.shape)
