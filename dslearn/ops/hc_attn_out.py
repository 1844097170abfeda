"""Attention's output projection and the write to the streams: twin, and operation."""

from __future__ import annotations

from torch import Tensor

from dslearn.kernels import hc_attn_out as kernels
from dslearn.ops import fp8_folded, hc_expand
from dslearn.ops.registry import Op


# The schema, the twin and the kernel have the same parameters.
def reference(  # noqa: PLR0913
    x: Tensor, weight: Tensor, power: Tensor, h: Tensor, post: Tensor, comb: Tensor
) -> Tensor:
    """The projection x · Wᵀ, rounded to the dtype of h, written to the streams.

    Args:
        x: [R, K] bf16.
        weight: uint8 [128, T, J, 128], of `dslearn.formats.place.place_fp8`.
        power: uint8 [128, T, J, B], of `place_fp8`.
        h: [R, S, d] bf16 or fp32.
        post: [R, S] fp32.
        comb: [R, S, S] fp32, contracted over its first S.
    Returns:
        [R, S, d], dtype of h.
    Source: docs/reference/model.md, "Streams" and "Attention".
    """
    y = fp8_folded.reference(x, weight, power, h.shape[2], True)
    return hc_expand.reference(y.to(h.dtype), h, post, comb)


def _fake(  # noqa: PLR0913
    x: Tensor, weight: Tensor, power: Tensor, h: Tensor, post: Tensor, comb: Tensor
) -> Tensor:
    return h.new_empty(h.shape)


hc_attn_out = Op(
    "hc_attn_out(Tensor x, Tensor weight, Tensor power, Tensor h, Tensor post, Tensor comb) "
    "-> Tensor",
    twin=reference,
    fake=_fake,
    kernel=kernels.hc_attn_out,
    takes={
        "x": "bf16 [R, K]",
        "weight": "u8 [128, T, J, 128]",
        "power": "u8 [128, T, J, B]",
        "h": "bf16|fp32 [R, S, d]",
        "post": "fp32 [R, S]",
        "comb": "fp32 [R, S, S]",
    },
)
