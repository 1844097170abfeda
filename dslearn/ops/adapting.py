"""From the caller's tensors to those that a kernel takes: padding, and bytes for codes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def padded(x: Tensor, *multiples: int) -> Tensor:
    """`x` with zeros behind its last elements until every dim is a multiple of its number.

    Args:
        x: one dim per number.
        multiples: 1 leaves a dim alone.
    Returns:
        A new tensor, or `x` itself where nothing is missing.
    """
    missing = [-size % multiple for size, multiple in zip(x.shape, multiples, strict=True)]
    if not any(missing):
        return x
    return F.pad(x, [n for behind in reversed(missing) for n in (0, behind)])


def as_bytes(x: Tensor) -> Tensor:
    """The codes of a tensor of 8-bit elements as uint8, in the same memory.

    trn2 reads e4m3 bytes above 240 otherwise than torch does, and the vendor's torch refuses the
    dtype, so kernels take bytes and say how they read them.
    Source: docs/reference/nki.md, "Dtypes".
    """
    return x if x.dtype == torch.uint8 else x.view(torch.uint8)
