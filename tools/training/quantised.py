"""Quantisation-aware steps: the forward pass sees stored weights, the optimiser full ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from dslearn.checkpoint.inventory import scale_name, tile_size
from dslearn.checkpoint.names import entries
from dslearn.checkpoint.storage import dequantise, quantise
from dslearn.config import Config


def as_stored(cfg: Config, dense: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """`dense` [name -> fp32] after a trip through the released storage."""
    kinds = entries(cfg)
    stored = quantise(cfg, dense)
    out = {}
    for name in dense:
        scale = stored.get(scale_name(name))
        payload = stored[name]
        if scale is None:
            out[name] = payload.float()
        else:
            out[name] = dequantise(kinds[name].kind, payload, scale, tile_size(cfg))
    return out


@contextmanager
def stored_weights(cfg: Config, named: dict[str, nn.Parameter]) -> Iterator[None]:
    """Within the block every parameter holds its stored value; afterwards the full one again.

    Gradients taken inside apply to the full weights: a straight-through estimate.
    """
    masters = {name: p.data for name, p in named.items()}
    with torch.no_grad():
        for name, value in as_stored(cfg, masters).items():
            named[name].data = value
    try:
        yield
    finally:
        for name, p in named.items():
            p.data = masters[name]
