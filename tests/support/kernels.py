"""What tests of kernels share: matrices from integers, bits of results, bytes moved by DMA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dslearn.sim import Instruction, recording


def matrix(seed: int, rows: int, columns: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal values [rows, columns], the same on every machine."""
    values = np.random.default_rng(seed).integers(-1000, 1000, (4, rows, columns)).sum(0)
    return torch.from_numpy(values / 1000).to(dtype)


def bits(x: Tensor) -> Tensor:
    """The raw words of a bf16 or fp32 tensor, so that equality sees signs of zeros and NaN."""
    return x.view(torch.int16 if x.element_size() == 2 else torch.int32)


def recorded(call: Callable[[], Any]) -> list[list[Instruction]]:
    """The instructions of each core of the one launch that `call` makes."""
    with recording() as launches:
        call()
    assert len(launches) == 1, "one launch was expected"
    return launches[0].cores


def dma_bytes(core: list[Instruction]) -> tuple[int, int]:
    """Bytes that a core's copies read from HBM and wrote to HBM."""
    copies = [one for one in core if one.name == "dma_copy"]
    read = sum(i.nbytes for one in copies for i in one.inputs if not i.region.on_chip)
    wrote = sum(o.nbytes for one in copies for o in one.outputs if not o.region.on_chip)
    return read, wrote
