"""fp4 products of the experts that are wanted: their twins, and the operations of the kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from dslearn.formats import rows
from dslearn.formats.place_fp4 import unplace_fp4
from dslearn.kernels import fp4_gated as kernels
from dslearn.ops.registry import Op


def reference(x: Tensor, words: Tensor, power: Tensor, active: Tensor, outputs: int) -> Tensor:
    """x · W[e]ᵀ in fp32, rounded once, for experts with a flag; zeros for the others.

    Args:
        x: [M, K] bf16.
        words: [E, 128, T, S, 64, 4] uint8, of `dslearn.formats.place_fp4.place_fp4`.
        power: [E, 128, Q, 128 T] uint8.
        active: [1, E] int32, not 0 for experts that are wanted.
        outputs: N.
    Returns:
        [E, M, N], dtype of x.
    Source: docs/reference/formats.md, "Device placement".
    """
    wanted = active[0].nonzero().flatten().to(torch.int32)
    count = torch.full((1, 1), len(wanted), dtype=torch.int32)
    return reference_active(x, words, power, wanted.unsqueeze(-1), count, outputs)


def reference_active(
    x: Tensor, words: Tensor, power: Tensor, order: Tensor, count: Tensor, outputs: int
) -> Tensor:
    """As `reference`, for the first `count` [1, 1] experts of `order` [E, 1]."""
    y = x.new_zeros((len(words), len(x), outputs))
    for e in order[: int(count), 0].tolist():
        weight = rows.dequantize_fp4(*unplace_fp4(words[e], power[e], outputs, x.shape[1]))
        y[e] = (x.float() @ weight.T).to(x.dtype)
    return y


_TAKES = {"x": "bf16 [M, K]", "words": "u8 [E, 128, T, S, 64, 4]", "power": "u8 [E, 128, Q, N]"}

fp4_gated = Op(
    "fp4_gated(Tensor x, Tensor words, Tensor power, Tensor active, int outputs) -> Tensor",
    twin=reference,
    fake=lambda x, words, power, active, outputs: x.new_empty(
        (words.shape[0], x.shape[0], outputs)
    ),
    kernel=kernels.fp4_gated,
    takes={**_TAKES, "active": "i32 [1, E]"},
)

fp4_active = Op(
    "fp4_active(Tensor x, Tensor words, Tensor power, Tensor order, Tensor count, int outputs)"
    " -> Tensor",
    twin=reference_active,
    fake=lambda x, words, power, order, count, outputs: x.new_empty(
        (words.shape[0], x.shape[0], outputs)
    ),
    kernel=kernels.fp4_active,
    takes={**_TAKES, "order": "i32 [E, 1]", "count": "i32 [1, 1]"},
)
