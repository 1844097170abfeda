"""Weights as the expert and projection kernels read them: inputs in rows, made once at load.

The tensor engine contracts over partitions, so a tile of a weight wants its inputs there; a
checkpoint has its outputs in rows. Legend: N outputs, K inputs, N' and K' the same padded with
zeros, E experts, I intermediate. Everything is moved, nothing is rounded.
Source: docs/reference/formats.md, "Weight tiles" and "Blocks".
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from dslearn.formats import tables, ue8m0
from dslearn.formats.bits import as_bytes
from dslearn.formats.place import check_device, check_scales
from dslearn.formats.place_fp4 import widen
from dslearn.formats.tiles import check_grid

BLOCK = tables.EXPERT_BLOCK
INPUTS, OUTPUTS = 128, 64  # padding: whole tiles of inputs, a block of outputs for each core
HIDDEN = 256  # an expert's hidden size, the outputs of its second product: a tile for each core
ONE = tables.E8M0_BIAS  # the scale byte of 1


def padded(x: Tensor, multiples: tuple[int, int], value: int = 0) -> Tensor:
    """x [..., A, B] with A and B raised to multiples, filled with `value`."""
    down, right = (-size % to for size, to in zip(x.shape[-2:], multiples, strict=True))
    return F.pad(x, (0, right, 0, down), value=value)


def in_turns(a: Tensor, b: Tensor, block: int = BLOCK) -> Tensor:
    """Rows of a and b [..., N, K] in turns of `block`: [..., 2N, K]; N a multiple of `block`."""
    both = torch.stack([m.unflatten(-2, (-1, block)) for m in (a, b)], -3)
    return both.flatten(-4, -2)


def fp8(
    codes: Tensor, scale: Tensor, outputs: int = OUTPUTS, inputs: int = INPUTS
) -> tuple[Tensor, Tensor]:
    """A weight of 32 x 32 tiles: codes [K', N'] and scale bytes [K'/32, N'/32].

    Args:
        codes: uint8 or float8_e4m3fn [N, K], at most 240 in magnitude (`device.to_device`).
        scale: uint8 [ceil(N/32), ceil(K/32)].
        outputs, inputs: N' and K' are multiples of them, and they of 32.
    Raises:
        FormatError: a grid of another tile size, codes that trn2 reads as infinity or NaN, or scale
            bytes 0 or 255.
    """
    check_grid(codes, scale, BLOCK)
    data = as_bytes(codes, "e4m3 codes", torch.float8_e4m3fn)
    check_device(data)
    wide = padded(data, (outputs, inputs))
    grid = padded(check_scales(scale), (outputs // BLOCK, inputs // BLOCK), ONE)
    return wide.T.contiguous(), grid.T.contiguous()


def by_part(weight: Tensor, parts: int = 2) -> Tensor:
    """A weight [K', N'] as [P, 128, K'/128, N'/P]: parts of the outputs, lane by lane.

    A part is what one core does. What a lane reads lies together, so that DMA moves kilobytes in a
    row however narrow N is.
    """
    return (
        weight.unflatten(0, (-1, 128)).unflatten(-1, (parts, -1)).permute(2, 1, 0, 3).contiguous()
    )


def scale_by_part(scale: Tensor, parts: int = 2) -> Tensor:
    """Scale bytes [K'/32, N'/32] as [P, 4, N'/32/P, K'/128]: one row for 32 lanes."""
    return scale.unflatten(0, (-1, 4)).unflatten(-1, (parts, -1)).permute(2, 1, 3, 0).contiguous()


Weight = tuple[Tensor, Tensor]  # codes and scale, as in a checkpoint


def shared_expert(w1: Weight, w3: Weight, w2: Weight) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What `ops.shared_expert` takes of three fp8 weights: gate_up, its scale, down, its scale.

    Args:
        w1, w3: codes [I, K] up to 240 and scale bytes of 32 x 32 tiles; gate and up.
        w2: codes [K, I] and scale bytes; down.
    Raises:
        FormatError: as `fp8`.
    """
    gate, up = (fp8(*w, inputs=HIDDEN) for w in (w1, w3))  # [D, I'], [D/32, I'/32]
    codes, scale = (
        in_turns(a.T, b.T, block).T for a, b, block in zip(gate, up, (BLOCK, 1), strict=True)
    )
    down, down_scale = fp8(*w2, outputs=HIDDEN, inputs=OUTPUTS)
    return by_part(codes), scale_by_part(scale), _rows_by_half(down), _rows_by_half(down_scale)


def routed_expert(w1: Weight, w3: Weight, w2: Weight) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What `ops.experts` takes of one expert's fp4 weights, widened; stack experts along dim 0.

    Args:
        w1, w3: packed [I, K/2] and scale bytes [I, K/32]; gate and up.
        w2: packed [K, I/2] and scale bytes [K, I/32]; down.
    Returns:
        gate_up, its factors, down, its factors.
    Raises:
        FormatError: as `place_fp4.widen`.
    """
    (gate, gate_factor), (up, up_factor) = (_wide(*w, OUTPUTS, HIDDEN) for w in (w1, w3))
    down, down_factor = _wide(*w2, HIDDEN, OUTPUTS)
    codes = by_part(in_turns(gate, up).T)
    factors = _rows_by_half(torch.stack((gate_factor, up_factor), -1))
    lanes = down_factor.unflatten(0, (-1, 128)).T.contiguous()
    return codes, factors, _rows_by_half(down.T), lanes


def _rows_by_half(x: Tensor) -> Tensor:
    return x.unflatten(0, (2, -1)).contiguous()


def _wide(packed: Tensor, scale: Tensor, outputs: int, inputs: int) -> Weight:
    codes, byte = widen(packed, scale)
    factor = F.pad(ue8m0.decode(byte), (0, -len(byte) % outputs), value=1.0)
    return padded(codes, (outputs, inputs)), factor
