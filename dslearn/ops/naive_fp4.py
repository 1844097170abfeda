"""Twin of `dslearn.kernels.naive_fp4`."""

from __future__ import annotations

from torch import Tensor

from dslearn.formats import rows


def reference(x: Tensor, packed: Tensor, scale: Tensor) -> Tensor:
    """x · Wᵀ, summed in fp32, rounded once.

    Args:
        x: [M, K] bf16.
        packed: [N, K/2] uint8, two e2m1 codes per byte, the first in the low half.
        scale: [N, K/32] uint8, powers of two per 32 inputs.
    Returns:
        [M, N], dtype of x.
    Source: docs/reference/formats.md.
    """
    return (x.float() @ rows.dequantize_fp4(packed, scale).float().T).to(x.dtype)
