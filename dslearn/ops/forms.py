"""Which tensors a kernel takes, in one line each: `bf16|fp32 [R, K]`.

Dims: a number, a name that means the same size in all tensors of a call, or `K/32`, rounded up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from dslearn.errors import UsageError

DTYPES: dict[str, torch.dtype] = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "ue8m0": torch.float8_e8m0fnu,
    "u8": torch.uint8,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,  # not on the chip: for the adapter to narrow
    "bool": torch.bool,
}
_FORM = re.compile(r"([\w|]+) \[(.*)\]")
_DIM = re.compile(r"(\d+)|([A-Za-z]\w*)(?:/([1-9]\d*))?")


@dataclass(frozen=True)
class Dim:
    """A size: `number`, or the size called `name` divided by `number`, rounded up."""

    name: str
    number: int

    def size(self, sizes: Mapping[str, int]) -> int | None:
        """How large, given the sizes of the names; None while the name has no size."""
        if not self.name:
            return self.number
        return -(-sizes[self.name] // self.number) if self.name in sizes else None


@dataclass(frozen=True)
class Form:
    """The dtypes and dims that one argument may have."""

    dtypes: tuple[torch.dtype, ...]
    dims: tuple[Dim, ...]


def parse(text: str) -> Form:
    """`bf16|fp32 [R, K/32, 4]` as a form.

    Raises:
        UsageError: it reads otherwise.
    """
    match = _FORM.fullmatch(text)
    kinds = match[1].split("|") if match else []
    dims = [part.strip() for part in match[2].split(",")] if match and match[2] else []
    parts = [_DIM.fullmatch(dim) for dim in dims]
    if not kinds or not all(kind in DTYPES for kind in kinds) or not all(parts):
        raise UsageError(
            f"{text!r} is no form: write dtypes ({', '.join(DTYPES)}) and dims, 'bf16|fp32 [R, K]'"
        )
    sizes = [Dim(m[2] or "", int(m[1] or m[3] or 1)) for m in parts if m]
    return Form(tuple(DTYPES[kind] for kind in kinds), tuple(sizes))


def complaint(forms: Mapping[str, Form], arguments: Mapping[str, Any]) -> str:
    """What is wrong with the tensors among the arguments, '' if nothing; None is no tensor."""
    given = {name: arguments.get(name) for name in forms}
    tensors = {name: t for name, t in given.items() if t is not None}
    for name, t in tensors.items():
        if t.dtype not in forms[name].dtypes or t.ndim != len(forms[name].dims):
            return f"{name} is {_shown(t)}"
    sizes: dict[str, int] = {}
    for name, t in tensors.items():
        for dim, size in zip(forms[name].dims, t.shape, strict=True):
            if dim.number == 1 and dim.name:
                sizes.setdefault(dim.name, size)
    for name, t in tensors.items():
        for dim, size in zip(forms[name].dims, t.shape, strict=True):
            wanted = dim.size(sizes)
            if wanted is not None and size != wanted:
                where = ", ".join(f"{n} = {s}" for n, s in sizes.items())
                return f"{name} is {_shown(t)}" + (f" where {where}" if where else "")
    return ""


def _shown(t: torch.Tensor) -> str:
    short = {kind: name for name, kind in DTYPES.items()}
    return f"{short.get(t.dtype, str(t.dtype).removeprefix('torch.'))} {list(t.shape)}"
