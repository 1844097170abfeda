"""A small stack of layers with marked methods: a store into a pool, then a product."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dslearn.model.stage import stage


class Layer(nn.Module):
    """One layer; `number` differs between layers and is read by `numbered` only."""

    def __init__(self, number: int, width: int = 8) -> None:
        super().__init__()
        self.number = number
        seeded = torch.Generator().manual_seed(number)
        self.weight = nn.Parameter(torch.randn(width, width, generator=seeded) / width)
        self.register_buffer("pool", torch.zeros(16, width))

    @stage("store")
    def store(self, h: Tensor, rows: Tensor, pool: Tensor) -> Tensor:
        pool.index_copy_(0, rows, h)
        return h + self.mixed(pool[:4].sum(0))

    @stage("mix")
    def mixed(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)

    @stage("numbered")
    def numbered(self, h: Tensor) -> Tensor:
        return h * self.number


class Stack(nn.Module):
    """`count` layers, one after the other."""

    def __init__(self, count: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(i) for i in range(count))

    @stage("step", whole=True)
    def forward(self, h: Tensor, rows: Tensor) -> Tensor:
        for layer in self.layers:
            h = layer.store(h, rows, layer.pool)
        return h

    def pools(self) -> Tensor:
        return torch.stack([layer.pool for layer in self.layers])


def inputs(rows: int = 2) -> tuple[Tensor, Tensor]:
    """Streams of `rows` rows, and the rows of the pools where they are stored."""
    return torch.arange(rows * 8.0).view(rows, 8) - 7, torch.arange(rows) + 1
