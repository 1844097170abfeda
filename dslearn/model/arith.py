"""The arithmetic every module shares: matrix products, roundings and fake quantisation.

One object is handed to all modules of a model, so that a numeric switch is thrown in one place
and a trainer can put its own products in. Shapes: R rows, K inputs, N outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from dslearn.formats import rows
from dslearn.model import chip, chip_linear
from dslearn.numerics import Numerics

VECTOR = 64  # a multiple of what any CPU's vector loop takes per turn
SERIAL = 1 << 14  # values that torch computes on one thread
ROW_BLOCK = 16  # rows of a launch in row-invariant mode; also entries per product of index scores


def straight_through(x: Tensor, rounded: Tensor) -> Tensor:
    """`rounded` forwards, the identity backwards; without gradients just `rounded`."""
    return x + (rounded - x).detach() if x.requires_grad else rounded


class Arith:
    """Products, roundings and quantisers under one `Numerics`.

    Args:
        numerics: the switches.
        block: inputs per activation scale (32 in V4.1).
    """

    def __init__(self, numerics: Numerics, block: int = 32) -> None:
        self.numerics = numerics
        self.block = block

    def round(self, x: Tensor) -> Tensor:
        """Round to bf16 where the released code stores a bf16 tensor; identity in fp32."""
        if self.numerics.arithmetic == "fp32":
            return x
        return straight_through(x, x.to(torch.bfloat16).float())

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """x [..., K] times weight [N, K] transposed -> [..., N], accumulated in fp32."""
        # CPU libraries pick the order of a sum by the number of rows, and by the place of each.
        return self.by_rows(x, partial(F.linear, weight=weight), 1)

    def by_rows(
        self, x: Tensor, product: Callable[[Tensor], Tensor], rows: int = ROW_BLOCK
    ) -> Tensor:
        """product(x) for a product [..., K] -> [..., N] that treats each row alike.

        In row-invariant mode it gets `rows` rows at a time, each time in memory of its own.
        """
        if not self.numerics.row_invariant:
            return product(x)
        flat = x.reshape(-1, x.shape[-1])
        padded = F.pad(flat, (0, 0, 0, -len(flat) % rows))
        blocks = [product(part.clone()) for part in padded.split(rows)]
        out = torch.cat(blocks) if blocks else product(flat)
        return out[: len(flat)].reshape(*x.shape[:-1], out.shape[-1])

    def linear_fp32(self, x: Tensor, weight: Tensor) -> Tensor:
        """Like `linear`, for the products that stay fp32 on the chip (router, streams, head).

        The weight is the parameter itself: what its kernel reads is kept with it.
        """
        if chip.serves(x, weight):
            return self.by_rows(x, chip_linear.plain(weight, self.numerics))
        return self.linear(x, weight)

    def pairs(self, a: Tensor, b: Tensor) -> Tensor:
        """Batched a [R, M, K] times b [R, N, K] transposed -> [R, M, N]."""
        if not self.numerics.row_invariant:
            return torch.matmul(a, b.transpose(-1, -2))
        out = [x.contiguous() @ y.contiguous().T for x, y in zip(a, b, strict=True)]
        return torch.stack(out) if out else a.new_zeros(0, a.shape[1], b.shape[1])

    def grouped(self, x: Tensor, weight: Tensor) -> Tensor:
        """x [..., G, K] times weight [G, N, K] transposed, group by group -> [..., G * N]."""
        groups = weight.shape[0]
        if self.numerics.row_invariant or x.requires_grad:
            parts = [self.linear(x[..., g, :], weight[g]) for g in range(groups)]
            return torch.cat(parts, -1)
        flat = x.reshape(-1, groups, x.shape[-1]).transpose(0, 1)
        out = torch.bmm(flat, weight.transpose(1, 2)).transpose(0, 1)
        return out.reshape(*x.shape[:-2], -1)

    def pointwise(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """function(x) elementwise, for exp and its kin.

        torch computes whole vector registers one way and what is left over another way, and each
        thread has leftovers: in row-invariant mode there are none.
        """
        if not self.numerics.row_invariant:
            return function(x)
        flat = x.reshape(-1)
        padded = F.pad(flat, (0, -len(flat) % VECTOR))
        parts = [function(part) for part in padded.split(SERIAL)]
        return torch.cat(parts)[: len(flat)].view(x.shape)

    def activations(self, x: Tensor, stored_quantised: bool) -> Tensor:
        """The input a quantised linear sees: e4m3 with one power-of-two scale per block."""
        wanted = self.numerics.activations
        if not (stored_quantised if wanted is None else wanted):
            return x
        return straight_through(x, rows.fake_fp8(x, self.block, self.numerics.fp8_max))

    def index_queries(self, q: Tensor) -> Tensor:
        """Index queries [..., I] as they meet the stored index keys: fp4 with ue8m0 per 32."""
        return straight_through(q, rows.fake_fp4(q, 32)) if self.numerics.caches else q


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., K] over its root mean square, times weight [K]; fp32 throughout."""
    return F.rms_norm(x, weight.shape, weight, eps)


def stable_topk(scores: Tensor, k: int) -> Tensor:
    """Indices [..., k] of the k largest along the last dim; equal scores go to the lowest index."""
    return torch.sort(scores, dim=-1, descending=True, stable=True).indices[..., :k]
