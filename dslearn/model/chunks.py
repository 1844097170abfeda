"""Prompts in chunks of one size, so that a graph of one shape reads them.

Shapes: B batch, T tokens, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from dslearn.model.checked import checked
from dslearn.model.state import State

if TYPE_CHECKING:
    from dslearn.model.model import Model

CHUNK = 64  # tokens


def in_chunks(
    model: Model,
    ids: Tensor,
    state: State,
    lengths: Tensor | list[int] | None = None,
    lanes: Tensor | None = None,
) -> Tensor:
    """`model.forward` of ids [B, T], `CHUNK` tokens after `CHUNK` tokens, the last padded.

    -> fp32 [B, T, V]. Errors as `Model.forward`.
    """
    counts = checked(model, ids, state, lengths, lanes)
    parts = []
    for begin in range(0, ids.shape[1], CHUNK):
        part = ids[:, begin : begin + CHUNK]
        padded = F.pad(part, (0, CHUNK - part.shape[1]))
        real = (counts - begin).clamp(0, part.shape[1])
        parts.append(model.forward(padded, state, real, lanes)[:, : part.shape[1]])
    return torch.cat(parts, 1)
