"""The product of many rows with an fp8 weight: its twin, and the operation of its kernel."""

from __future__ import annotations

from dslearn.kernels import fp8_linear as kernels
from dslearn.ops.fp8_folded import fake, reference
from dslearn.ops.registry import Op

__all__ = ["fp8_linear", "reference"]

fp8_linear = Op(
    "fp8_linear(Tensor x, Tensor weight, Tensor power, int outputs, bool fp32_out=False) -> Tensor",
    twin=reference,
    fake=fake,
    kernel=kernels.fp8_linear,
    takes={"x": "bf16 [M, K]", "weight": "u8 [128, T, J, 128]", "power": "u8 [128, T, J, B]"},
)
