"""Writing the residual streams: its twin, and the operation that the kernel serves."""

from __future__ import annotations

from torch import Tensor

from dslearn.kernels import hc_expand as kernels
from dslearn.ops.registry import Op


def reference(y: Tensor, h: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """out_k = post_k · y + sum over j of comb[j, k] · h_j, in fp32 and in order of j, rounded once.

    Args:
        y: [R, d], dtype of h.
        h: [R, S, d] bf16 or fp32.
        post: [R, S] fp32.
        comb: [R, S, S] fp32, contracted over its first S.
    Returns:
        [R, S, d], dtype of h.
    Source: docs/reference/model.md, "Streams".
    """
    out = post.unsqueeze(-1) * y.float().unsqueeze(-2)
    for j in range(h.shape[1]):
        out = out + comb[:, j, :].unsqueeze(-1) * h[:, j : j + 1, :].float()
    return out.to(h.dtype)


hc_expand = Op(
    "hc_expand(Tensor y, Tensor h, Tensor post, Tensor comb) -> Tensor",
    twin=reference,
    fake=lambda y, h, post, comb: h.new_empty(h.shape),
    kernel=kernels.hc_expand,
    takes={
        "y": "bf16|fp32 [R, d]",
        "h": "bf16|fp32 [R, S, d]",
        "post": "fp32 [R, S]",
        "comb": "fp32 [R, S, S]",
    },
)
