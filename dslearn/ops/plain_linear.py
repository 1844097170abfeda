"""The product with a weight that is not quantised: its twin, and the operation of its kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dslearn.formats.place import unplace_codes
from dslearn.kernels import plain_linear as kernels
from dslearn.ops.registry import Op


def reference(x: Tensor, weight: Tensor, outputs: int) -> Tensor:
    """x · Wᵀ in fp32.

    Args:
        x: [M, K] bf16 or fp32.
        weight: [128, T, J, 128] bf16 or fp32, of `dslearn.formats.place.place_codes`.
        outputs: N.
    Returns:
        [M, N] fp32.
    Source: docs/reference/model.md, "Which linears are quantised".
    """
    return x.float() @ unplace_codes(weight)[:outputs, : x.shape[1]].float().T


def _adapt(kernel: Callable[..., Any], x: Tensor, weight: Tensor, outputs: int) -> Any:
    return kernel(x.to(weight.dtype) if weight.dtype is torch.float32 else x, weight, outputs)


plain_linear = Op(
    "plain_linear(Tensor x, Tensor weight, int outputs) -> Tensor",
    twin=reference,
    fake=lambda x, weight, outputs: x.new_empty((x.shape[0], outputs), dtype=torch.float32),
    kernel=kernels.plain_linear,
    takes={"x": "bf16|fp32 [M, K]", "weight": "bf16|fp32 [128, T, J, 128]"},
    adapt=_adapt,
)
