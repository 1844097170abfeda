"""Mixture of experts: router, clamped SwiGLU experts, shared expert.

Shapes: R rows (tokens), d hidden, E routed experts, I intermediate, k experts per token.
Source: docs/reference/model.md, "Experts".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dslearn.config import Config
from dslearn.model import chip, chip_experts, chip_linear, listed
from dslearn.model.arith import Arith, stable_topk
from dslearn.model.linear import Fused, Input, Linear


def clamped_swiglu(
    gate: Tensor, up: Tensor, limit: float, silu: Callable[[Tensor], Tensor] = F.silu
) -> Tensor:
    """silu(min(gate, limit)) * clamp(up, -limit, limit): the gate is clamped from above only."""
    return silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)


class Router(nn.Module):
    """Chooses k experts per token; the bias selects, the unbiased scores weigh."""

    def __init__(self, cfg: Config, arith: Arith) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(cfg.n_routed_experts, cfg.hidden_size))
        self.bias = nn.Parameter(torch.empty(cfg.n_routed_experts))
        self.bias_vl = nn.Parameter(torch.empty(cfg.n_routed_experts))
        self.cfg, self.arith = cfg, arith

    def place(self) -> None:
        """See `chip.prepare`."""
        if chip.serves(self.weight):
            chip_linear.plain(self.weight, self.arith.numerics)

    def scores(self, x: Tensor) -> Tensor:
        """sqrt(softplus(x W^T / gate_temp)) in fp32: x [R, d] -> [R, E]."""
        z = self.arith.linear_fp32(x, self.weight)
        if self.cfg.gate_temp != 1.0:
            z = z / self.cfg.gate_temp
        return self.arith.pointwise(F.softplus, z).sqrt()

    def forward(self, x: Tensor, image: Tensor | None) -> tuple[Tensor, Tensor]:
        """x [R, d], image [R] bool or None -> ids [R, k] int64, weights [R, k] fp32."""
        k = self.cfg.num_experts_per_tok
        scores = self.scores(x)
        bias: Tensor = self.bias
        if image is not None:
            bias = torch.where(image.unsqueeze(-1), self.bias_vl, self.bias)
        ids = stable_topk(scores.detach() + bias, k)
        weights = scores.gather(-1, ids)
        if k > 1 and self.cfg.norm_topk_prob:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return ids, weights * self.cfg.routed_scaling_factor


class Expert(nn.Module):
    """One SwiGLU expert: w1 gate, w3 up [I, d]; w2 down [d, I]."""

    def __init__(self, cfg: Config, arith: Arith) -> None:
        super().__init__()
        d, i = cfg.hidden_size, cfg.moe_intermediate_size
        self.w1 = Linear(d, i, arith, quantised=True)
        self.w3 = Linear(d, i, arith, quantised=True)
        self.w2 = Linear(i, d, arith, quantised=True)
        self.gate_up = Fused(self.w1, self.w3)
        self.limit, self.arith = cfg.swiglu_limit, arith

    def forward(self, x: Tensor | Input, weight: Tensor | float | None = None) -> Tensor:
        """x [R, d], weight [R, 1], one for all, or None -> [R, d].

        The router weight multiplies before w2, where the product is rounded and quantised.
        """
        gate, up = self.gate_up(x if isinstance(x, Input) else Input(x, self.arith))
        return self.w2(self.arith.round(self.hidden(gate, up, weight)))

    def hidden(self, gate: Tensor, up: Tensor, weight: Tensor | float | None) -> Tensor:
        """gate and up [R, I], weight as in `forward` -> what w2 multiplies, not rounded [R, I]."""
        if chip.serves(gate, up):
            return chip.swiglu(gate, up, self.limit, weight)
        hidden = clamped_swiglu(gate, up, self.limit, partial(self.arith.pointwise, F.silu))
        return hidden if weight is None else hidden * weight


class MoE(nn.Module):
    """Routed experts plus the shared expert of one layer."""

    def __init__(self, cfg: Config, arith: Arith) -> None:
        super().__init__()
        self.gate = Router(cfg, arith)
        self.experts = nn.ModuleList(Expert(cfg, arith) for _ in range(cfg.n_routed_experts))
        self.shared_experts = Expert(cfg, arith)
        self.arith = arith

    def forward(self, x: Tensor, image: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """x [R, d] -> output [R, d], route ids [R, k], route weights [R, k].

        Experts add up in ascending id, so that a row's sum has one order whatever the batch.
        """
        ids, weights = self.gate(x, image)
        given = Input(x, self.arith)  # quantised once for all experts
        shared = self.shared_experts(given)  # first: it makes the form that the others share
        return self.arith.round(self._routed(given, ids, weights) + shared), ids, weights

    def every(self) -> Iterator[Expert]:
        """The routed experts."""
        return (cast(Expert, expert) for expert in self.experts)

    @property
    def first(self) -> Expert:
        """The first of the routed experts."""
        return cast(Expert, self.experts[0])

    def place(self) -> None:
        """See `chip.prepare`; experts one by one only where a list of them is no use."""
        if not chip.serves(self.first.w1.weight):
            return
        for part in (self.gate, self.shared_experts):
            chip.prepare(part)
        if chip_experts.stacks(self) is None:
            chip.prepare(self.experts)

    def _routed(self, given: Input, ids: Tensor, weights: Tensor) -> Tensor:
        """The routed experts' sum [R, d]."""
        product = self._listed(given.x)
        if product is not None:
            return listed.routed(self, given, ids, weights, product)
        if torch.compiler.is_compiling():
            return self._all(given, ids, weights)
        routed = torch.zeros_like(given.x)
        if len(given.x) == 1 and not given.x.requires_grad:  # decode: one row, nothing to gather
            for e, weight in sorted(zip(ids[0].tolist(), weights[0].tolist(), strict=True)):
                routed += self.experts[e](given, weight)
            return routed
        for e, expert in enumerate(self.every()):
            rows, slots = (ids == e).nonzero(as_tuple=True)
            if len(rows):
                y = expert(given.rows(rows), weights[rows, slots].unsqueeze(-1))
                routed = routed.index_add(0, rows, y)
        return routed

    def _listed(self, x: Tensor) -> listed.Product | None:
        """What computes the experts in use at once; None where they go one by one."""
        compiling, fixed = torch.compiler.is_compiling(), self.arith.numerics.row_invariant
        if chip.serves(x, self.first.w1.weight):
            if fixed or not (compiling or len(x) <= chip_linear.FEW):
                return None
            return chip_experts.product(self)
        if compiling and not x.requires_grad and listed.alike(self):
            return listed.on_cpu(self)
        return None

    def _all(self, given: Input, ids: Tensor, weights: Tensor) -> Tensor:
        """The same with every expert computed on every row, where a graph has no better way."""
        shares = torch.zeros(len(ids), len(self.experts)).scatter(1, ids, weights)
        routed = torch.zeros_like(given.x)
        for e, expert in enumerate(self.every()):
            routed = routed + expert(given, shares[:, e : e + 1])
        return routed
