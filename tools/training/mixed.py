"""Mixed precision for training: bf16 products, fp32 everything else."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from dslearn.model.arith import Arith


class MixedArith(Arith):
    """The model's arithmetic with its large products in bf16.

    A CPU with bf16 matrix instructions multiplies several times faster; router, streams and head
    (`linear_fp32`) stay fp32 as in the released code.
    """

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """x [..., K] times weight [N, K] transposed, in bf16 with fp32 accumulation."""
        return F.linear(x.bfloat16(), weight.bfloat16()).float()

    def linear_fp32(self, x: Tensor, weight: Tensor) -> Tensor:
        """The product in fp32."""
        return F.linear(x, weight)

    def pairs(self, a: Tensor, b: Tensor) -> Tensor:
        """Batched a [R, M, K] times b [R, N, K] transposed, in bf16."""
        return torch.matmul(a.bfloat16(), b.bfloat16().transpose(-1, -2)).float()
