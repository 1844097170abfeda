"""Pooling pairs of tokens: the twin, and the operation that the kernel serves."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dslearn.kernels import compress_pool as kernels
from dslearn.ops.registry import Op


def _normed(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    return F.rms_norm(x.float(), weight.shape[-1:], weight.float().flatten(), eps).to(dtype)


def reference(  # noqa: PLR0913 - the parameters of the kernel
    u: Tensor,
    weight: Tensor,
    eps: float,
    round_latent: bool,
    g: Tensor | None = None,
    start: Tensor | None = None,
    lengths: Tensor | None = None,
    open_u: Tensor | None = None,
    open_g: Tensor | None = None,
) -> Tensor:
    """norm of the pooled tokens of each group that this call closes, zeros for the others.

    Args:
        u: [B, T, D] fp32 or bf16, values.
        weight: [D], of the norm.
        eps: of the norm.
        round_latent: round the pooled values and the result to bf16.
        g: [B, T, D] fp32, scores; None at ratio 1, where every token is a group.
        start: [B] position of the first token.
        lengths: [B] real tokens.
        open_u, open_g: [B, D] fp32, the token that waits, 0 and -inf for none; written.
    Returns:
        [B, T, D], or [B, T // 2 + 1, D] at ratio 2; bf16 or fp32.
    Source: docs/reference/model.md, "Compressor".
    """
    dtype = torch.bfloat16 if round_latent else torch.float32
    if g is None:
        return _normed(u, weight, eps, dtype)
    assert start is not None and lengths is not None, "g comes with start and lengths"
    assert open_u is not None and open_g is not None, "g comes with open_u and open_g"
    batch = torch.arange(len(u))
    odd = start.long() % 2
    places = 2 * torch.arange(u.shape[1] // 2 + 1) + 1 - odd[:, None]
    places = torch.stack((places, places + 1), -1)  # [B, G, 2], the waiting token at 0
    pairs = []
    for waiting, tokens in ((open_u, u), (open_g, g)):
        line = torch.cat((waiting[:, None], F.pad(tokens, (0, 0, 0, 2))), 1)
        pairs.append(line[batch[:, None, None], places])
    pooled = (pairs[1].softmax(2) * pairs[0]).sum(2).to(dtype)
    closed = places[..., 1] <= lengths[:, None]
    latent = _normed(pooled, weight, eps, dtype).masked_fill(~closed[..., None], 0)
    last = (lengths.long() - 1).clamp(min=0)
    waits, moved = ((start + lengths) % 2 == 1)[:, None], (lengths > 0)[:, None]
    for state, tokens, empty in ((open_u, u, 0.0), (open_g, g, -torch.inf)):
        state.copy_(torch.where(moved, tokens[batch, last].masked_fill(~waits, empty), state))
    return latent


def _adapt(  # noqa: PLR0913
    kernel: Any,
    u: Tensor,
    weight: Tensor,
    eps: float,
    round_latent: bool,
    g: Tensor | None = None,
    start: Tensor | None = None,
    lengths: Tensor | None = None,
    open_u: Tensor | None = None,
    open_g: Tensor | None = None,
) -> Tensor:
    columns = [None if c is None else c.int()[:, None] for c in (start, lengths)]
    out: Tensor = kernel(u, weight[None], eps, round_latent, g, *columns, open_u, open_g)
    return out


def _fake(  # noqa: PLR0913
    u: Tensor,
    weight: Tensor,
    eps: float,
    round_latent: bool,
    g: Tensor | None = None,
    start: Tensor | None = None,
    lengths: Tensor | None = None,
    open_u: Tensor | None = None,
    open_g: Tensor | None = None,
) -> Tensor:
    groups = u.shape[1] if g is None else u.shape[1] // 2 + 1
    dtype = torch.bfloat16 if round_latent else torch.float32
    return u.new_empty((u.shape[0], groups, u.shape[2]), dtype=dtype)


compress_pool = Op(
    "compress_pool(Tensor u, Tensor weight, float eps, bool round_latent, Tensor? g=None, "
    "Tensor? start=None, Tensor? lengths=None, Tensor(a!)? open_u=None, Tensor(b!)? open_g=None) "
    "-> Tensor",
    twin=reference,
    fake=_fake,
    kernel=kernels.compress_pool,
    takes={
        "u": "bf16|fp32 [B, T, D]",
        "weight": "bf16|fp32 [D]",
        "g": "fp32 [B, T, D]",
        "start": "i32|i64 [B]",
        "lengths": "i32|i64 [B]",
        "open_u": "fp32 [B, D]",
        "open_g": "fp32 [B, D]",
    },
    adapt=_adapt,
)
