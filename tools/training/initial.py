"""Initial weights of a training run."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dslearn.model import Model
from dslearn.model.weights import named_tensors


def initialise(model: Model, seed: int) -> None:
    """Fill every parameter in place; the same seed gives the same weights on the same machine.

    Streams start nearly independent: sublayer l reads mostly stream l mod S and the mixing matrix
    is nearly the identity, so that depth works from the first step.
    """
    generator = torch.Generator().manual_seed(seed)
    depth = 2 * model.cfg.num_hidden_layers
    with torch.no_grad():
        for name, p in named_tensors(model):
            _fill(name, p, generator, depth, model.cfg.hc_mult)


def _fill(name: str, p: Tensor, generator: torch.Generator, depth: int, streams: int) -> None:
    if "hc_" in name:
        _fill_streams(name, p, generator, streams)
    elif name.endswith("norm.weight") or name.endswith(("q_weight", "k_weight")):
        p.fill_(1.0)
    elif name.endswith(("bias", "bias_vl", "attn_sink")):
        p.zero_()
    elif name == "embed.weight":
        p.normal_(0, 1.0, generator=generator)
    elif name.endswith("engram.embed.weight"):
        p.normal_(0, 0.1, generator=generator)
    elif name == "head.weight":
        p.normal_(0, 0.02, generator=generator)
    elif name.endswith(("wo_b.weight", "w2.weight")):
        p.normal_(0, 1 / math.sqrt(p.shape[-1] * depth), generator=generator)
    else:
        p.normal_(0, 1 / math.sqrt(p.shape[-1]), generator=generator)


def _fill_streams(name: str, p: Tensor, generator: torch.Generator, s: int) -> None:
    if name.endswith("_fn"):
        p.normal_(0, 0.01, generator=generator)
    elif name.endswith("_scale"):
        p.fill_(1.0)
    else:
        layer, half = int(name.split(".")[1]), int("ffn" in name)
        p.zero_()
        p[:s] = -1.5
        p[(2 * layer + half + 1) % s] = 1.5  # the mix computed here is read one sublayer later
        p[s : 2 * s].normal_(0, 0.5, generator=generator)
        p[2 * s :] = (4.0 * torch.eye(s)).flatten()
