"""Twin of `dslearn.kernels.naive_fp8`."""

from __future__ import annotations

from torch import Tensor

from dslearn.formats import tiles


def reference(x: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
    """x · Wᵀ, summed in fp32, rounded once.

    Args:
        x: [M, K] bf16.
        codes: [N, K] uint8, e4m3fn codes.
        scale: [N/32, K/32] uint8, powers of two per 32 x 32 tile.
    Returns:
        [M, N], dtype of x.
    Source: docs/reference/formats.md.
    """
    return (x.float() @ tiles.dequantize(codes, scale).float().T).to(x.dtype)
