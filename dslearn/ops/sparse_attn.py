"""Sparse attention: its twin, and the operation that its kernel serves."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dslearn.formats.records import Record
from dslearn.kernels import sparse_attn as kernels
from dslearn.ops.registry import Op

EMPTY_MAX = -1e30  # running maximum of a query that has no key


def reference(  # noqa: PLR0913 - the parameters of the kernel
    q: Tensor,
    position: Tensor,
    window: Tensor,
    held: Tensor,
    sink: Tensor,
    width: int,
    round_p: bool,
    entries: Tensor | None = None,
    selected: Tensor | None = None,
) -> Tensor:
    """Softmax attention with a sink over the window and the selected entries, in fp32.

    Args:
        q: [T, H, D] bf16 or fp32, rotated.
        position: [T] of each query; negative sees nothing of the window.
        window: [N, D + D/32] uint8 records.
        held: [N] position of each window record; negative is none.
        sink: [H] fp32.
        width: positions of the window, the query's own included.
        round_p: round the probabilities that multiply values to bf16, not those of the sum.
        entries: [E, D/2 + D/16] uint8 records, or None.
        selected: [T, K] rows of entries; any outside 0 .. E - 1 is none, or None.
    Returns:
        [T, H, D], dtype of q; zeros for a query without keys.
    Source: docs/reference/model.md, "Attention".
    """
    dim = q.shape[-1]
    age = position[:, None] - held
    hidden = (age < 0) | (age >= width) | (held < 0)
    keys = Record("window", dim).unpack(window).expand(len(q), -1, -1)
    if entries is not None and selected is not None and len(entries):
        inside = selected.clamp(0, len(entries) - 1)
        taken = Record("compressed", dim).unpack(entries[inside.long()])
        keys, hidden = torch.cat((keys, taken), 1), torch.cat((hidden, inside != selected), 1)
    keys = keys.masked_fill(hidden[..., None], 0.0)
    scores = q.float() @ keys.mT * dim**-0.5
    scores = scores.masked_fill(hidden[:, None], -torch.inf)
    top = scores.amax(-1, keepdim=True).clamp(min=EMPTY_MAX)
    p = (scores - top).exp()
    total = p.sum(-1, keepdim=True) + (sink[:, None] - top).exp()
    return ((p.bfloat16().float() if round_p else p) @ keys / total).to(q.dtype)


def _adapt(  # noqa: PLR0913
    kernel: Any,
    q: Tensor,
    position: Tensor,
    window: Tensor,
    held: Tensor,
    sink: Tensor,
    width: int,
    round_p: bool,
    entries: Tensor | None = None,
    selected: Tensor | None = None,
) -> Tensor:
    column, record = position.int()[:, None], held.int()[:, None]
    if entries is not None and selected is not None and not (len(entries) and selected.shape[1]):
        entries = selected = None
    chosen = None if selected is None else selected.int()
    out: Tensor = kernel(q, column, window, record, sink[:, None], width, round_p, entries, chosen)
    return out


sparse_attn = Op(
    "sparse_attn(Tensor q, Tensor position, Tensor window, Tensor held, Tensor sink, int width, "
    "bool round_p, Tensor? entries=None, Tensor? selected=None) -> Tensor",
    twin=reference,
    fake=lambda q, position, window, held, sink, width, round_p, entries=None, selected=None: (
        q.new_empty(q.shape)
    ),
    kernel=kernels.sparse_attn,
    takes={
        "q": "bf16|fp32 [T, H, D]",
        "position": "i32|i64 [T]",
        "window": "u8 [N, S]",
        "held": "i32|i64 [N]",
        "sink": "fp32 [H]",
        "entries": "u8 [E, C]",
        "selected": "i32|i64 [T, K]",
    },
    adapt=_adapt,
)
