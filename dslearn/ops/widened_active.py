"""Products of the experts in use, by slot: their twin, and the operation of its kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from dslearn.kernels import widened_active as kernels
from dslearn.ops import fp4_widened
from dslearn.ops.registry import Op


# The schema, the twin and the kernel have the same parameters.
def reference(  # noqa: PLR0913
    x: Tensor, weight: Tensor, power: Tensor, order: Tensor, count: Tensor, outputs: int
) -> Tensor:
    """x[a] · W[order[a]]ᵀ in fp32 for the first `count` slots; zeros for the others.

    Args:
        x: [A, M, K] bf16, or [1, M, K] for all slots.
        weight: [E, 128, T, J, 128] uint8, each of `dslearn.formats.place_fp4.place_widened`.
        power: [E, 128, T] uint8.
        order: [A, 1] int32.
        count: [1, 1] int32.
        outputs: N.
    Returns:
        [A, M, N] fp32.
    Source: docs/reference/formats.md, "Device placement".
    """
    y = x.new_zeros((len(order), x.shape[1], outputs), dtype=torch.float32)
    for slot, e in enumerate(order[: int(count), 0].tolist()):
        rows = x[slot if len(x) > 1 else 0]
        y[slot] = fp4_widened.reference(rows, weight[e], power[e], outputs, True)
    return y


def _fake(  # noqa: PLR0913
    x: Tensor, weight: Tensor, power: Tensor, order: Tensor, count: Tensor, outputs: int
) -> Tensor:
    return x.new_empty((order.shape[0], x.shape[1], outputs), dtype=torch.float32)


widened_active = Op(
    "widened_active(Tensor x, Tensor weight, Tensor power, Tensor order, Tensor count, "
    "int outputs) -> Tensor",
    twin=reference,
    fake=_fake,
    kernel=kernels.widened_active,
    takes={
        "x": "bf16 [X, M, K]",
        "weight": "u8 [E, 128, T, J, 128]",
        "power": "u8 [E, 128, T]",
        "order": "i32 [A, 1]",
        "count": "i32 [1, 1]",
    },
)
