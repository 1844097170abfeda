"""What a caller hands to `Model.forward`, checked before anything is computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dslearn.errors import StateError, UsageError
from dslearn.model.state import State

if TYPE_CHECKING:
    from dslearn.model.model import Model


def checked(  # noqa: PLR0913 - those of `Model.forward`
    model: Model,
    ids: Tensor,
    state: State | None,
    lengths: Tensor | list[int] | None,
    lanes: Tensor | None = None,
    embeds: Tensor | None = None,
    image: Tensor | None = None,
) -> Tensor:
    """Lengths [B] of what `Model.forward` is given, or its errors."""
    if ids.dim() != 2 or ids.shape[1] == 0 or ids.dtype not in (torch.int64, torch.int32):
        raise UsageError(
            f"ids of shape {tuple(ids.shape)}, {ids.dtype}: must be int64 [batch, tokens >= 1]"
        )
    if bool((ids < 0).any()) or bool((ids >= model.cfg.vocab_size).any()):
        raise UsageError(
            f"token ids {int(ids.min())}..{int(ids.max())}: must be 0..{model.cfg.vocab_size - 1}"
        )
    b, t = ids.shape
    counts = torch.full((b,), t) if lengths is None else torch.as_tensor(lengths)
    whole = not counts.is_floating_point() and counts.dtype is not torch.bool
    if not whole or counts.shape != (b,) or bool((counts < 0).any()) or bool((counts > t).any()):
        raise UsageError(
            f"lengths={counts.tolist()}: one per row ({b}), each a whole number 0..{t}"
        )
    if embeds is not None and (image is None or embeds.shape != (b, t, model.cfg.hidden_size)):
        raise UsageError(
            f"embeds of shape {tuple(embeds.shape)}: needs image_mask and shape "
            f"[{b}, {t}, {model.cfg.hidden_size}]"
        )
    if image is not None and (image.shape != (b, t) or image.dtype != torch.bool):
        raise UsageError(
            f"image_mask of {tuple(image.shape)}, {image.dtype}: must be bool [{b}, {t}]"
        )
    if state is not None:
        if (lanes is None and state.batch != b) or state.numerics != model.numerics:
            raise StateError(
                f"the state holds {state.batch} sequences under {state.numerics}; this call "
                f"has {b} under {model.numerics}: make a new state"
            )
        if lanes is not None:
            _check_lanes(lanes, counts, state)
        state.check_room(counts, lanes)
    elif lanes is not None:
        raise UsageError("lanes are those of a state: give the state too")
    elif t > model.cfg.max_position_embeddings:
        raise UsageError(
            f"{t} tokens: this model knows {model.cfg.max_position_embeddings} positions"
        )
    return counts.to(torch.int64, copy=True)


def _check_lanes(lanes: Tensor, counts: Tensor, state: State) -> None:
    real = lanes[counts > 0] if lanes.shape == counts.shape else lanes
    if (
        lanes.shape != counts.shape
        or lanes.dtype != torch.int64
        or bool((lanes < 0).any())
        or bool((lanes >= state.batch).any())
        or len(real.unique()) != len(real)
    ):
        raise UsageError(
            f"lanes={lanes.tolist()}: one int64 per row ({len(counts)}), each "
            f"0..{state.batch - 1}, none twice but for rows of length 0"
        )
