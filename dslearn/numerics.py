"""How the model rounds: one frozen switchboard that every module receives.

The reference path is fp32 arithmetic on dequantised weights with the model's own fake
quantisation of activations and caches. The bf16 path rounds where the released code holds bf16
tensors (docs/reference/model.md, "Where bf16 rounds").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dslearn.errors import UsageError

Arithmetic = Literal["fp32", "bf16"]


@dataclass(frozen=True)
class Numerics:
    """Numeric switches of a forward pass.

    Args:
        arithmetic: "fp32" (the reference path) or "bf16" (rounds where the chip's path rounds).
        activations: None quantises exactly the inputs of linears that are stored quantised
            (`wo_a` excepted), True the inputs of every linear that the released checkpoint stores
            quantised, False none.
        caches: whether keys, compressed entries and index keys go through their record formats.
        fp8_max: largest e4m3 magnitude in activations and cache records: 448 (checkpoint
            convention), 240 (IEEE e4m3) or 224 (device convention).
        row_invariant: compute every row in the same 16-row blocks whatever the batch or chunk, so
            that chunking, batching and speculation give identical bytes. About 5x slower.

    Raises:
        UsageError: a value outside the lists above.
    """

    arithmetic: Arithmetic = "fp32"
    activations: bool | None = None
    caches: bool = True
    fp8_max: int = 448
    row_invariant: bool = False

    def __post_init__(self) -> None:
        if self.arithmetic not in ("fp32", "bf16"):
            raise UsageError(f"arithmetic={self.arithmetic!r}: must be 'fp32' or 'bf16'")
        if self.activations not in (None, True, False):
            raise UsageError(f"activations={self.activations!r}: must be None, True or False")
        if self.fp8_max not in (448, 240, 224):
            raise UsageError(
                f"fp8_max={self.fp8_max!r}: must be 448 (checkpoint), 240 (IEEE e4m3) "
                "or 224 (device convention)"
            )
