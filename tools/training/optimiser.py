"""Muon for the matrices inside the blocks, AdamW for everything else."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from dslearn.model import Model
from dslearn.model.linear import Linear
from dslearn.model.weights import named_tensors

MATRIX_RATE = 0.02


def groups(model: Model) -> tuple[list[nn.Parameter], list[dict[str, Any]]]:
    """Split the parameters: matrices for Muon, and AdamW groups with their own rates.

    Engram rows are touched rarely and take a larger rate without decay (arXiv 2601.07372).
    """
    linears = {id(m.weight) for m in model.modules() if isinstance(m, Linear)}
    matrices: list[nn.Parameter] = []
    tables, others = [], []
    for name, p in named_tensors(model):
        if name.endswith(("gate.bias", "gate.bias_vl")):
            p.requires_grad_(False)  # moved by load, not by gradient
        elif id(p) in linears:
            matrices.append(p)
        elif name.endswith("embed.weight"):
            tables.append(p)
        else:
            others.append(p)
    adam = [{"params": tables, "lr": 0.006}, {"params": others, "lr": 0.002}]
    return matrices, adam


class Optimiser:
    """Both optimisers behind one step."""

    def __init__(self, model: Model) -> None:
        matrices, adam = groups(model)
        self.muon = torch.optim.Muon(matrices, lr=MATRIX_RATE, weight_decay=0.02, momentum=0.95)
        self.adam = torch.optim.AdamW(adam, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
        self.parts = (self.muon, self.adam)
        for part in self.parts:
            for group in part.param_groups:
                group["base"] = group["lr"]

    def step(self, rate: float) -> None:
        """One update at `rate` times each group's own learning rate; clears the gradients."""
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = group["base"] * rate
            part.step()
            part.zero_grad(set_to_none=True)

    def state_dict(self) -> list[dict[str, Any]]:
        """State of both, for resuming."""
        return [part.state_dict() for part in self.parts]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        """Restore what `state_dict` gave."""
        for part, state in zip(self.parts, states, strict=True):
            part.load_state_dict(state)
