"""One training step, shared by all ranks: forward, backward, sum of gradients, update."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from dslearn.config import Config
from dslearn.model import Model
from dslearn.model.attention import Attention
from dslearn.model.engram_hash import EngramHash
from dslearn.model.indexer import Indexer
from dslearn.model.moe import Router
from dslearn.model.weights import named_tensors
from dslearn.numerics import Numerics
from training.mixed import MixedArith
from training.optimiser import Optimiser
from training.plan import Phase
from training.quantised import stored_weights

ALL = 1 << 20  # a top-k and candidate count that selects everything
BIAS_RATE = 0.002
INDEX_WEIGHT = 0.1  # per layer; only the indexer feels it
PLAIN = Numerics(activations=False, caches=False)
QUANTISED = Numerics(activations=True, caches=True)


class Trainer:
    """The model with its optimiser.

    Args:
        cfg: the config of the checkpoint to be.
        engram_hash: its hashing.
        world: number of ranks; gradients are averaged over them.
    """

    def __init__(self, cfg: Config, engram_hash: EngramHash, world: int) -> None:
        self.cfg, self.world = cfg, world
        self.model = Model(cfg, PLAIN, engram_hash)
        mixed = MixedArith(PLAIN, self.model.arith.block)
        for part in self.model.modules():
            if hasattr(part, "arith"):
                part.arith = mixed
        self.optimiser = Optimiser(self.model)
        self.named = dict(named_tensors(self.model))
        self.routers = [m for m in self.model.modules() if isinstance(m, Router)]
        self._dense: bool | None = None

    def step(self, chunk: Tensor, phase: Phase) -> Tensor:
        """Train on chunk int64 [rows, length + 1]; -> mean [cross entropy, index loss] in nats."""
        self._select(phase.dense)
        self.model.arith.numerics = QUANTISED if phase.quantised else PLAIN
        trace: dict[str, Any] = {"index_losses": []}
        stored = stored_weights(self.cfg, self.named) if phase.quantised else nullcontext()
        with stored:
            logits = self.model(chunk[:, :-1], trace=trace)
            loss = F.cross_entropy(logits.flatten(0, 1), chunk[:, 1:].flatten())
            index_loss = torch.stack(trace["index_losses"]).mean()
            (loss + INDEX_WEIGHT * index_loss).backward()
        loads = torch.stack(
            [self._load(layer["route_ids"]) for layer in trace["layers"]]
        )  # [layers, experts]
        figures = self._average(torch.stack((loss.detach(), index_loss.detach())), loads)
        self._clip()
        self.optimiser.step(phase.rate)
        self._balance(loads)
        return figures

    def _load(self, ids: Tensor) -> Tensor:
        return torch.bincount(ids.flatten(), minlength=self.cfg.n_routed_experts).float()

    def _average(self, figures: Tensor, loads: Tensor) -> Tensor:
        """Average gradients, figures and loads over the ranks, in place, in one message."""
        if self.world == 1:
            return figures
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        parts = [*grads, figures, loads]
        flat = torch.cat([part.flatten() for part in parts]) / self.world
        dist.all_reduce(flat)
        for part, new in zip(parts, flat.split([p.numel() for p in parts]), strict=True):
            part.copy_(new.view_as(part))
        return figures

    def _clip(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)

    def _balance(self, loads: Tensor) -> None:
        """Nudge the selection bias towards experts that got fewer rows than the mean."""
        with torch.no_grad():
            for router, load in zip(self.routers, loads, strict=True):
                router.bias += BIAS_RATE * torch.sign(load.mean() - load)
                router.bias -= router.bias.mean()
                router.bias_vl.copy_(router.bias)

    def _select(self, dense: bool) -> None:
        """Attend to every entry, or to the config's selection."""
        if dense == self._dense:
            return
        self._dense = dense
        cfg = self.cfg
        if dense:
            cfg = replace(cfg, index_topk=ALL, candidate_topk_blocks=ALL)
        for part in self.model.modules():
            if isinstance(part, Attention):
                part.cfg = cfg
            if isinstance(part, Indexer):
                part.topk = cfg.index_topk
