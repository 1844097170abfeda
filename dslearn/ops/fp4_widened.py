"""The product with an fp4 weight widened to fp8: its twin, and the operation of its kernel."""

from __future__ import annotations

from torch import Tensor

from dslearn.formats import e4m3, ue8m0
from dslearn.formats.place import unplace_codes
from dslearn.kernels import fp4_widened as kernels
from dslearn.ops.fp8_folded import fake
from dslearn.ops.registry import Op


def reference(
    x: Tensor, weight: Tensor, power: Tensor, outputs: int, fp32_out: bool = False
) -> Tensor:
    """x · Wᵀ in fp32 with one final rounding.

    Args:
        x: [M, K] bf16.
        weight: uint8 [128, T, J, 128], of `dslearn.formats.place_fp4.place_widened`.
        power: uint8 [128, T], of `place_widened`.
        outputs: N.
        fp32_out: return fp32 instead of the dtype of x.
    Returns:
        [M, N].
    Source: docs/reference/formats.md, "e2m1" and "Device placement".
    """
    values = e4m3.decode(unplace_codes(weight)[:outputs, : x.shape[1]])
    y = x.float() @ (values * ue8m0.decode(power.T.reshape(-1, 1)[:outputs])).T
    return y if fp32_out else y.to(x.dtype)


fp4_widened = Op(
    "fp4_widened(Tensor x, Tensor weight, Tensor power, int outputs, bool fp32_out=False)"
    " -> Tensor",
    twin=reference,
    fake=fake,
    kernel=kernels.fp4_widened,
    takes={"x": "bf16 [M, K]", "weight": "u8 [128, T, J, 128]", "power": "u8 [128, T]"},
)
