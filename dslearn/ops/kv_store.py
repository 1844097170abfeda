"""Storing keys as cache records: the twin, and the operation that its kernel serves."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor

from dslearn.formats.records import Kind, Record
from dslearn.kernels import kv_store as kernels
from dslearn.ops.registry import Op


def reference(
    x: Tensor, slots: Tensor, valid: Tensor, pool: Tensor, kind: str, fp8_max: int = 448
) -> None:
    """pool[slots[t]] = record of x[t] where valid, zeros elsewhere.

    Args:
        x: [T, D] bf16 or fp32.
        slots: [T] int32 or int64, rows of the pool.
        valid: [T] bool; rows that are not valid name scratch rows, which may repeat.
        pool: [N, S] uint8; written.
        kind: "window", "compressed" or "index".
        fp8_max: 448, 240 or 224.
    Source: docs/reference/formats.md, "Cache records".
    """
    records = Record(cast(Kind, kind), x.shape[-1], fp8_max).pack(x)
    records = records.masked_fill(~valid[:, None], 0)
    pool.index_copy_(0, slots.long(), records)


def _adapt(  # noqa: PLR0913 - the kernel, and the schema's arguments
    kernel: Any,
    x: Tensor,
    slots: Tensor,
    valid: Tensor,
    pool: Tensor,
    kind: str,
    fp8_max: int = 448,
) -> None:
    if len(x):
        kernel(x, slots.int()[:, None], valid.float()[:, None], pool, kind, fp8_max)


kv_store = Op(
    "kv_store(Tensor x, Tensor slots, Tensor valid, Tensor(a!) pool, str kind, int fp8_max=448) "
    "-> ()",
    twin=reference,
    fake=lambda x, slots, valid, pool, kind, fp8_max=448: None,
    kernel=kernels.kv_store,
    takes={
        "x": "bf16|fp32 [T, D]",
        "slots": "i32|i64 [T]",
        "valid": "bool [T]",
        "pool": "u8 [N, S]",
    },
    adapt=_adapt,
)
