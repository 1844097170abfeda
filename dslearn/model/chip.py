"""What kernels serve in the model: the decision, and the operations in the model's own terms.

On backend `cpu` the model computes in torch. Elsewhere whatever has a kernel here goes to the
operations of `dslearn.ops`, fp32 in and out, so that all roundings stay where the model has them;
`dslearn generate --trace` lists the rest. `chip_linear` has the quantised products.
Shapes: R rows, K columns, I intermediate, S streams, d hidden.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from dslearn import backend

if TYPE_CHECKING:
    from dslearn.model.hyper import HyperConnection

T = TypeVar("T")


class Kept(NamedTuple):
    """What was made of a weight; its memory, which stays taken, and its count of writes."""

    made: object
    source: Tensor
    version: int


# Beside the modules, not in them: a model is copied and pickled without it.
_kept: WeakKeyDictionary[nn.Module, Kept] = WeakKeyDictionary()


def serves(*tensors: Tensor) -> bool:
    """Whether operations on these tensors belong on the chip: another backend than `cpu`.

    Gradients stay in torch, and so do graphs: what `torch.compile` captures of a model has no
    kernels in it yet.
    """
    if torch.compiler.is_compiling() or backend.current().name == "cpu":
        return False
    return not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors))


def placed(owner: nn.Module, weight: Tensor, make: Callable[[Tensor], T]) -> T:
    """make(weight), the one weight of `owner` that is arranged for a kernel.

    Made at the first call, and again when the weight was replaced or written; writes through
    `.data` or NumPy leave no trace, so they are not seen.
    """
    found = _kept.get(owner)
    version = 0 if weight.is_inference() else weight._version  # inference tensors do not count
    if found is None or found.source.data_ptr() != weight.data_ptr() or found.version != version:
        found = _kept[owner] = Kept(make(weight.detach()), weight.detach(), version)
    made: T = found.made  # type: ignore[assignment]
    return made


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`arith.rms_norm`: x [..., K] -> [..., K]."""
    from dslearn.ops.rmsnorm import rmsnorm

    return rmsnorm(x.reshape(-1, x.shape[-1]), weight, eps).view(x.shape)


def swiglu(gate: Tensor, up: Tensor, limit: float, weight: Tensor | float | None) -> Tensor:
    """`moe.clamped_swiglu` times weight [R, 1], one for all rows, or None: gate, up [R, I]."""
    from dslearn.ops.swiglu import swiglu as operation

    if isinstance(weight, float):
        weight = torch.full((len(gate), 1), weight)
    return operation(gate, up, limit, weight)


def mixes(layer: HyperConnection, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`HyperConnection.forward`: h [..., S, d] -> pre and post [..., S], comb [..., S, S]."""
    from dslearn.ops.hc_mixes import hc_mixes, place

    fn = placed(layer, layer.fn, place)
    numbers = layer.norm_eps, layer.hc_eps, layer.iterations
    pre, post, comb = hc_mixes(h.flatten(0, -3), fn, layer.base, layer.scale, *numbers)
    return pre.view(h.shape[:-1]), post.view(h.shape[:-1]), comb.view(*h.shape[:-1], -1)


def collapse(h: Tensor, weights: Tensor) -> Tensor:
    """`hyper.collapse`, not rounded: h [..., S, d], weights [..., S] -> [..., d]."""
    from dslearn.ops.hc_collapse import hc_collapse

    out = hc_collapse(h.flatten(0, -3), weights.flatten(0, -2))
    return out.view(*h.shape[:-2], h.shape[-1])


def expand(y: Tensor, h: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """`hyper.expand`, not rounded: y [..., d], h [..., S, d] -> [..., S, d]."""
    from dslearn.ops.hc_expand import hc_expand

    rows = y.flatten(0, -2), h.flatten(0, -3), post.flatten(0, -2), comb.flatten(0, -3)
    return hc_expand(*rows).view(h.shape)


def engram_gate(
    h: Tensor, kv: Tensor, weight: Tensor, eps: float, dead: Tensor | None
) -> tuple[Tensor, Tensor]:
    """h + gate * value, not rounded, and the gates: h [R, S, d], kv [R, (S + 1) d], dead [R]."""
    from dslearn.ops.engram_gate import engram_gate as operation

    out, gate = operation(h, kv, weight, eps, dead)
    return out, gate
