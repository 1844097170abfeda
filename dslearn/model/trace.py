"""What a call tells about its layers, when it is asked: `Model.forward(..., trace={})`.

Shapes: B batch, T tokens, S streams, d hidden, K selected, k experts, C Engram columns, H heads,
W window.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Size, Tensor

from dslearn.config import Config
from dslearn.model.plan import Left


def told(
    cfg: Config, left: Iterable[Left], rows: Tensor | None, shape: Size
) -> list[dict[str, Any]]:
    """One dict per layer, of what it left and of its Engram row ids, rows [B, T, L, C].

    "streams" [B, T, S, d] and "pre" [B, T, S] that its attention read, "topk" [B, T, K] the entries
    that it attended to, "route_ids" and "route_weights" [B, T, k], "engram_ids" [B, T, C] and
    "engram_gates" [B, T, S]; "shares" [B, T, H, W + K + 1] if they were asked for. shape: B, T.
    """
    layers, chosen = [], None
    for layer, one in enumerate(left):
        own = cfg.engram_layer_ids.index(layer) if layer in cfg.engram_layer_ids else None
        chosen = chosen if one.found.chosen is None else one.found.chosen
        said = {
            "engram_ids": None if own is None or rows is None else rows[:, :, own],
            "engram_gates": None if one.gate is None else one.gate.unflatten(0, shape),
            "streams": one.h.unflatten(0, shape),
            "pre": one.pre.unflatten(0, shape),
            "topk": chosen.long() if cfg.ratios[layer] and chosen is not None else None,
            "route_ids": one.ids.unflatten(0, shape),
            "route_weights": one.weights.unflatten(0, shape),
        }
        if one.found.shares is not None:
            said["shares"] = one.found.shares
        layers.append(said)
    return layers
