"""What kernels serve in the model: the decision, and the operations in the model's own terms.

On backend `cpu` the model computes in torch. Elsewhere whatever has a kernel here goes to the
operations of `dslearn.ops`, fp32 in and out, so that all roundings stay where the model has them;
`dslearn generate --trace` lists the rest. `chip_linear` has the products, `chip_grouped` and
`chip_experts` those of `wo_a` and of the routed experts.
Shapes: R rows, K columns, I intermediate, S streams, d hidden.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from dslearn import backend
from dslearn.errors import KernelError

if TYPE_CHECKING:
    from dslearn.model.hyper import HyperConnection

T = TypeVar("T")


class Kept:
    """What was made of weights; their memory, which stays taken, and their counts of writes.

    It goes with the weight or the module that it is an attribute of, but a copy or a pickle of
    these is made without it.
    """

    def __init__(self, make: Any, weights: tuple[Tensor, ...]) -> None:
        self.make = make
        self.made = make(*(weight.detach() for weight in weights))
        self.weights = [(weight.detach(), _writes(weight)) for weight in weights]

    def fits(self, make: Any, weights: tuple[Tensor, ...]) -> bool:
        """Whether this was made by `make`, of these weights, unchanged."""
        return (
            make is self.make
            and len(weights) == len(self.weights)
            and all(
                new.data_ptr() == old.data_ptr() and _writes(new) == writes
                for new, (old, writes) in zip(weights, self.weights, strict=True)
            )
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


def _writes(weight: Tensor) -> int:
    return 0 if weight.is_inference() else weight._version  # inference tensors do not count


def serves(*tensors: Tensor) -> bool:
    """Whether operations on these tensors belong on the chip: another backend than `cpu`.

    Gradients stay in torch. A graph is captured for one backend, and again for another.
    """
    if torch.compiler.is_compiling():
        if backend.captured_for == "cpu":
            return False
    elif backend.current().name == "cpu":
        return False
    return not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors))


def placed(owner: Tensor | nn.Module, make: Callable[..., T], *weights: Tensor) -> T:
    """make(*weights), the weights as a kernel reads them, kept as an attribute of `owner`.

    Made at the first call, and again when a weight was replaced or written; writes through
    `.data` or NumPy leave no trace, so they are not seen. A graph takes what there is as its
    inputs: `prepare` makes it before.

    Raises:
        KernelError: a graph is captured before anything was made.
    """
    if not torch.compiler.is_compiling():
        found: Kept | None = getattr(owner, "_placed", None)
        if found is None or not found.fits(make, weights):
            owner._placed = Kept(make, weights)  # type: ignore[union-attr]
    made: T = kept(owner)
    return made


def kept(owner: Tensor | nn.Module) -> Any:
    """What `placed` made last for `owner`.

    Raises:
        KernelError: nothing yet.
    """
    found: Kept | None = getattr(owner, "_placed", None)
    if found is None:
        raise KernelError(
            "a graph reads weights that are not placed for kernels yet: call "
            "dslearn.model.chip.prepare(model) on this backend before torch.compile captures it"
        )
    return found.made


def prepare(module: nn.Module) -> None:
    """Place every weight of a module for the kernels of the backend in force, if it changed.

    Needed before a graph is captured, and before a captured graph runs with other weights; what
    runs eagerly looks by itself. Costs a look at each weight when nothing changed.

    Raises:
        KernelError: weights that are not what their format holds.
    """
    place = getattr(module, "place", None)
    if place is not None:  # it knows which of its parts need it
        place()
        return
    for child in module.children():
        prepare(child)


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


def projection(layer: HyperConnection) -> Tensor:
    """`layer.fn` as `hc_mixes` reads it."""
    from dslearn.ops.hc_mixes import place

    return placed(layer.fn, place, layer.fn)


def mixes(layer: HyperConnection, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`HyperConnection.forward`: h [..., S, d] -> pre and post [..., S], comb [..., S, S]."""
    from dslearn.ops.hc_mixes import hc_mixes

    numbers = layer.norm_eps, layer.hc_eps, layer.iterations
    fn = projection(layer)
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
