"""The coefficients of the residual streams: their twin, and the operation of the kernel."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from dslearn.kernels import hc_mixes as kernels
from dslearn.ops.registry import Op

LANES = 128


def place(fn: Tensor) -> Tensor:
    """fn [M, K] as the kernel reads it: [128, J, M], input p J + j at [p, j, :], zeros from K on.

    Done once, when a model is loaded: then a lane's numbers lie side by side in HBM.
    """
    steps = -(-fn.shape[1] // LANES)
    whole = F.pad(fn, (0, LANES * steps - fn.shape[1]))
    return whole.T.reshape(LANES, steps, len(fn)).contiguous()


def balanced(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """Sinkhorn of logits [.., S, S] fp32, step by step as docs/reference/model.md says."""
    c = logits.softmax(-1) + eps
    c = c / (c.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        c = c / (c.sum(-1, keepdim=True) + eps)
        c = c / (c.sum(-2, keepdim=True) + eps)
    return c


# The schema, the twin and the kernel have the same parameters.
def reference(  # noqa: PLR0913
    h: Tensor,
    fn: Tensor,
    base: Tensor,
    scale: Tensor,
    norm_eps: float,
    hc_eps: float,
    iterations: int = 20,
) -> tuple[Tensor, Tensor, Tensor]:
    """How a sublayer reads, writes and mixes its streams, in fp32.

    Args:
        h: [R, S, d] bf16 or fp32.
        fn: [128, J, M] fp32 of `place`, M = S (S + 2).
        base: [M] fp32.
        scale: [3] fp32, of pre, post and comb.
        norm_eps: number added to the mean of squares.
        hc_eps: number added to pre and inside Sinkhorn.
        iterations: of Sinkhorn, the first counts.
    Returns:
        pre [R, S], post [R, S], comb [R, S, S], fp32.
    Source: docs/reference/model.md, "Streams".
    """
    s = h.shape[1]
    flat = h.flatten(1).float()
    m = flat @ fn.flatten(0, 1)[: flat.shape[1]]
    m = m * torch.rsqrt(flat.square().mean(-1, keepdim=True) + norm_eps)
    m = m * scale.repeat_interleave(torch.tensor([s, s, s * s], device=scale.device)) + base
    gates = m[:, : 2 * s].sigmoid()
    comb = balanced(m[:, 2 * s :].unflatten(1, (s, s)), iterations, hc_eps)
    return gates[:, :s] + hc_eps, 2 * gates[:, s:], comb


def _fake(  # noqa: PLR0913
    h: Tensor,
    fn: Tensor,
    base: Tensor,
    scale: Tensor,
    norm_eps: float,
    hc_eps: float,
    iterations: int = 20,
) -> tuple[Tensor, Tensor, Tensor]:
    rows, s = h.shape[:2]
    shapes = ((rows, s), (rows, s), (rows, s, s))
    pre, post, comb = (h.new_empty(shape, dtype=torch.float32) for shape in shapes)
    return pre, post, comb


hc_mixes = Op(
    "hc_mixes(Tensor h, Tensor fn, Tensor base, Tensor scale, float norm_eps, float hc_eps, "
    "int iterations=20) -> (Tensor, Tensor, Tensor)",
    twin=reference,
    fake=_fake,
    kernel=kernels.hc_mixes,
    takes={
        "h": "bf16|fp32 [R, S, d]",
        "fn": "fp32 [128, J, M]",
        "base": "fp32 [M]",
        "scale": "fp32 [3]",
    },
)
