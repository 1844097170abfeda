"""fp8 weights where a kernel wants them: inputs on partitions, a partition's bytes side by side.

The tensor engine contracts over partitions, so a weight [out, in] must arrive with 128 inputs on
128 partitions, and a DMA is fast when each partition reads kilobytes in a row. Both are arranged
once, when a checkpoint is loaded; no byte changes its value.

Legend: N outputs, K inputs; T tiles of 128 outputs, an even number (two cores); J steps of 128
inputs; B scales per tile and step, 128 / t for tiles of t x t. Padding is code 0, scale byte 127.
Source: docs/reference/formats.md, "Device placement".
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from dslearn.errors import FormatError
from dslearn.formats import tables
from dslearn.formats.bits import as_bytes
from dslearn.formats.tiles import check_grid

LANES = 128
ONE = tables.E8M0_BIAS  # the byte of scale 1


def tiles_of(outputs: int) -> int:
    """T for N outputs: tiles of 128, an even number of them."""
    return 2 * -(-outputs // (2 * LANES))


def place_fp8(codes: Tensor, scale: Tensor, tile: int = 32) -> tuple[Tensor, Tensor]:
    """A weight in square tiles as a kernel reads it.

    Args:
        codes: uint8 or float8_e4m3fn [N, K], no magnitude above 240: `device.to_device` first.
        scale: uint8 or float8_e8m0fnu [ceil(N/t), ceil(K/t)], bytes 1 to 254.
        tile: t, 32 or 128.

    Returns:
        weight: uint8 [128, T, J, 128]; [p, i, j, c] is the code of output 128 i + c, input
            128 j + p.
        power: uint8 [128, T, J, B]; [p, i, j, b] is the scale byte of input 128 j + p and
            outputs 128 i + 128/B b and following. For 32 x 32 tiles this adds 1/32 of the weight.

    Raises:
        FormatError: a grid of another tile size, a code that trn2 reads as infinity or NaN, or a
            scale byte 0 or 255, which a shift does not decode.
    """
    check_grid(codes, scale, tile)
    data = as_bytes(codes, "e4m3 codes", torch.float8_e4m3fn)
    check_device(data)
    byte = check_scales(scale)
    blocks = LANES // tile
    tiles, steps = tiles_of(codes.shape[0]), -(-codes.shape[1] // LANES)
    grid = pad(byte, tiles * blocks, steps * blocks, ONE).view(tiles, blocks, steps, blocks)
    rows = grid.permute(3, 0, 2, 1).repeat_interleave(tile, 0)
    return place_codes(data), rows.contiguous()


def unplace_fp8(weight: Tensor, power: Tensor, outputs: int, inputs: int) -> tuple[Tensor, Tensor]:
    """The inverse of `place_fp8`: codes [N, K] and the grid of scale bytes."""
    tiles, steps, blocks = power.shape[1:]
    tile = LANES // blocks
    grid = power[::tile].permute(1, 3, 2, 0).reshape(tiles * blocks, steps * blocks)
    down, across = -(-outputs // tile), -(-inputs // tile)
    return unplace_codes(weight)[:outputs, :inputs], grid[:down, :across]


def place_codes(codes: Tensor) -> Tensor:
    """Codes uint8 [N, K] -> [128, T, J, 128], padded with code 0."""
    tiles, steps = tiles_of(codes.shape[0]), -(-codes.shape[1] // LANES)
    whole = pad(codes, tiles * LANES, steps * LANES, 0)
    return whole.view(tiles, LANES, steps, LANES).permute(3, 0, 2, 1).contiguous()


def unplace_codes(weight: Tensor) -> Tensor:
    """The inverse of `place_codes`, padding included: [128 T, 128 J]."""
    lanes, tiles, steps, _ = weight.shape
    return weight.permute(1, 3, 2, 0).reshape(tiles * LANES, steps * lanes)


def pad(matrix: Tensor, rows: int, columns: int, value: int) -> Tensor:
    """A matrix enlarged to [rows, columns] with `value`."""
    return F.pad(matrix, (0, columns - matrix.shape[1], 0, rows - matrix.shape[0]), value=value)


def check_device(codes: Tensor) -> None:
    """Refuse e4m3 codes above 0x77.

    Raises:
        FormatError: such a code, with its place.
    """
    if codes.numel() and int((codes & 0x7F).max()) > tables.E4M3_IEEE_LAST_FINITE:
        row, column = (codes & 0x7F > tables.E4M3_IEEE_LAST_FINITE).nonzero()[0].tolist()
        raise FormatError(
            f"code {int(codes[row, column]):#04x} at ({row}, {column}): trn2 reads codes above "
            "0x77 as infinity or NaN; convert with dslearn.formats.device.to_device first"
        )


def check_scales(scale: Tensor) -> Tensor:
    """Scale bytes as uint8.

    Raises:
        FormatError: byte 0 (2^-127, not a normal number) or 255 (NaN).
    """
    byte = as_bytes(scale, "ue8m0 scale", torch.float8_e8m0fnu)
    if bool(((byte == 0) | (byte == tables.E8M0_NAN)).any()):
        raise FormatError(
            "scale byte 0 or 255: a kernel shifts scale bytes into exponents, which are normal "
            "numbers for bytes 1 to 254; is the file damaged?"
        )
    return byte
