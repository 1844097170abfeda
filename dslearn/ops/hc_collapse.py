"""Reading the residual streams: its twin, and the operation that the kernel serves."""

from __future__ import annotations

from torch import Tensor

from dslearn.kernels import hc_collapse as kernels
from dslearn.ops.registry import Op


def reference(h: Tensor, weights: Tensor) -> Tensor:
    """sum over streams c of weights_c · h_c, in fp32 and in order of c, rounded once.

    Args:
        h: [R, S, d] bf16 or fp32.
        weights: [R, S] fp32.
    Returns:
        [R, d], dtype of h.
    Source: docs/reference/model.md, "Streams".
    """
    wide, factors = h.float(), weights.unsqueeze(-1)
    total = factors[:, 0] * wide[:, 0]
    for c in range(1, h.shape[1]):
        total = total + factors[:, c] * wide[:, c]
    return total.to(h.dtype)


hc_collapse = Op(
    "hc_collapse(Tensor h, Tensor weights) -> Tensor",
    twin=reference,
    fake=lambda h, weights: h.new_empty((h.shape[0], h.shape[2])),
    kernel=kernels.hc_collapse,
    takes={"h": "bf16|fp32 [R, S, d]", "weights": "fp32 [R, S]"},
)
