"""Operations that only tests have: written in place, padded, of two results, of bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dslearn.ops.adapting import as_bytes, padded
from dslearn.ops.registry import Op
from tests.support import op_kernels


def _add_into(cache: Tensor, rows: Tensor) -> None:
    cache += rows


add_into = Op(
    "test_add_into(Tensor(a!) cache, Tensor rows) -> ()",
    twin=_add_into,
    fake=lambda cache, rows: None,
    kernel=op_kernels.add_into,
    takes={"cache": "fp32 [R, K]", "rows": "fp32 [R, K]"},
    grid=1,
)
add_into_a_copy = Op(
    "test_add_into_a_copy(Tensor(a!) cache, Tensor rows) -> ()",
    twin=_add_into,
    fake=lambda cache, rows: None,
    kernel=op_kernels.add_into,
    takes={"cache": "fp32 [R, K]", "rows": "fp32 [R, K]"},
    grid=(1,),
    adapt=lambda kernel, cache, rows: kernel(cache.clone(), rows),
)


def _times(x: Tensor, factor: float = 2.0) -> tuple[Tensor, Tensor]:
    return x * factor, x * -factor


def _times_padded(kernel: Callable[..., Any], x: Tensor, factor: float = 2.0) -> Any:
    return tuple(part[: len(x)] for part in kernel(padded(x, 32, 1), factor))


times = Op(
    "test_times(Tensor x, float factor=2.0) -> (Tensor, Tensor)",
    twin=_times,
    fake=lambda x, factor=2.0: (x.new_empty(x.shape), x.new_empty(x.shape)),
    kernel=op_kernels.times,
    takes={"x": "bf16|fp32 [R, K]"},
    grid=1,
    adapt=_times_padded,
)
same = Op(
    "test_same(Tensor x) -> Tensor",
    twin=lambda x: x.clone(),
    fake=lambda x: x.new_empty(x.shape),
    kernel=op_kernels.same,
    takes={"x": "fp32 [R, K]"},
    grid=1,
)
codes = Op(
    "test_codes(Tensor codes) -> Tensor",
    twin=lambda codes: codes.clone(),
    fake=lambda codes: codes.new_empty(codes.shape),
    kernel=op_kernels.copied,
    takes={"codes": "e4m3 [R, K]"},
    grid=1,
    adapt=lambda kernel, codes: kernel(as_bytes(codes)).view(torch.float8_e4m3fn),
)
