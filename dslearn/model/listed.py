"""Routed experts with fixed shapes: a list of those that some row uses, and their products.

A graph cannot run as many experts as the values in it ask for, and it need not: R rows use at most
A = min(E, R k) of E experts. So experts in use are listed in A slots, the rest of which compute
nothing, and every listed expert sees every row, with weight 0 where the row did not choose it.
Shapes: R rows, K inputs, N outputs, I intermediate, E experts, k per row, A slots.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch
from torch import Tensor

from dslearn.model.arith import Arith, stable_topk
from dslearn.numerics import Numerics
from dslearn.ops.host import host_op

if TYPE_CHECKING:
    from dslearn.model.linear import Input
    from dslearn.model.moe import MoE


class Slots(NamedTuple):
    """Which expert is in which slot: order [A, 1] and used [1, 1] int32, shares [A, R] fp32."""

    order: Tensor
    used: Tensor
    shares: Tensor


# product(name, x, slots): x [1 or A, R, K] times the weight `name` of each slot's expert,
# [A, R, N]; zeros in slots from `used` on.
Product: TypeAlias = Callable[[str, Tensor, Slots], Tensor]


def active(ids: Tensor, weights: Tensor, experts: int) -> Slots:
    """Experts that some row uses, ascending; what each gives to each row.

    Args:
        ids: [R, k] int64.
        weights: [R, k] fp32, the router's.
        experts: E.
    """
    rows = weights.new_zeros(len(ids), experts)
    chosen = rows.scatter(1, ids, torch.ones_like(weights)).amax(0)
    order = stable_topk(chosen, min(experts, ids.numel()))
    shares = rows.scatter(1, ids, weights).T.index_select(0, order)
    used = chosen.sum().to(torch.int32).view(1, 1)
    return Slots(order.to(torch.int32).unsqueeze(-1), used, shares)


def routed(layer: MoE, given: Input, ids: Tensor, weights: Tensor, product: Product) -> Tensor:
    """The experts' sum [R, d] of rows [R, d]; each of them as `Expert.forward` computes it."""
    arith, expert = layer.arith, layer.first
    slots = active(ids, weights, len(layer.experts))
    rows = [given.seen_by(w.stored_quantised).unsqueeze(0) for w in (expert.w1, expert.w3)]
    gate, up = (
        arith.round(product(name, x, slots)).flatten(0, 1)
        for name, x in zip(("w1", "w3"), rows, strict=True)
    )
    hidden = arith.round(expert.hidden(gate, up, slots.shares.reshape(-1, 1)))
    out = arith.round(product("w2", expert.w2.prepare(hidden).view(*slots.shares.shape, -1), slots))
    total = torch.zeros_like(given.x)
    for share in out.unbind(0):  # in ascending order of experts
        total = total + share
    return total


def alike(layer: MoE) -> bool:
    """Whether the experts are stored alike, so that one form of the inputs serves all."""
    kinds = {
        (e.w1.stored_quantised, e.w3.stored_quantised, e.w2.stored_quantised) for e in layer.every()
    }
    return len(kinds) == 1


def on_cpu(layer: MoE) -> Product:
    """The product that computes listed experts in torch."""

    def product(name: str, x: Tensor, slots: Slots) -> Tensor:
        weights = [getattr(expert, name).weight for expert in layer.every()]
        fixed = layer.arith.numerics.row_invariant
        out: Tensor = _listed_linear(x, weights, slots.order, slots.used, fixed)
        return out

    return product


def _products(
    x: Tensor, weights: list[Tensor], order: Tensor, count: Tensor, row_invariant: bool
) -> Tensor:
    """x [1 or A, R, K] times weights[order[a]] [N, K] transposed, a below count -> [A, R, N]."""
    linear = Arith(Numerics(row_invariant=row_invariant)).linear
    out = x.new_zeros(len(order), x.shape[1], len(weights[0]))
    for slot, expert in enumerate(order[: int(count), 0].tolist()):
        out[slot] = linear(x[slot if len(x) > 1 else 0], weights[expert])
    return out


_listed_linear = host_op(
    "listed_linear(Tensor x, Tensor[] weights, Tensor order, Tensor count, bool row_invariant)"
    " -> Tensor",
    _products,
    lambda x, weights, order, count, row_invariant: x.new_empty(
        (order.shape[0], x.shape[1], weights[0].shape[0])
    ),
)
