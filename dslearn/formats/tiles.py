"""Weight matrices in square tiles that share a scale: 32 x 32 in V4.1, 128 x 128 in V4.

Legend: weight [out, in], scale grid [ceil(out/tile), ceil(in/tile)]; the last tile of a row or a
column may be narrower. w = e4m3(code) * 2^(byte - 127).
Source: docs/reference/formats.md, "Weight tiles".
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from dslearn.errors import FormatError
from dslearn.formats import e4m3, rows, tables, ue8m0
from dslearn.formats.bits import as_bytes

_PART = 1 << 20  # values decoded at a time, so that temporaries stay small beside the result


def grid_of(shape: torch.Size | tuple[int, ...], tile: int) -> tuple[int, int]:
    """Shape of the scale grid of a weight [out, in].

    Raises:
        FormatError: the weight is not a matrix, or the tile is neither 32 nor 128.
    """
    if tile not in tables.WEIGHT_TILES:
        raise FormatError(f"tile={tile!r}: weight tiles are 32 (V4.1) or 128 (V4) wide")
    if len(shape) != 2:
        raise FormatError(f"weight of shape {tuple(shape)}: tiles are cut from [out, in] matrices")
    return -(-shape[0] // tile), -(-shape[1] // tile)


def check_grid(codes: Tensor, scale: Tensor, tile: int) -> None:
    """Refuse a scale grid that belongs to another tile size.

    Raises:
        FormatError: the grid is not [ceil(out/tile), ceil(in/tile)]. Read with the wrong tile, a
            checkpoint loads without any other sign and produces noise.
    """
    want = grid_of(codes.shape, tile)
    if tuple(scale.shape) == want:
        return
    fits = [t for t in tables.WEIGHT_TILES if grid_of(codes.shape, t) == tuple(scale.shape)]
    hint = f"; it is the grid of {fits[0]}x{fits[0]} tiles" if fits else ""
    raise FormatError(
        f"scale grid {tuple(scale.shape)} for a weight {tuple(codes.shape)} in {tile}x{tile} "
        f"tiles: must be {want}{hint}"
    )


def quantize(
    w: Tensor, tile: int = 32, fp8_max: int = 448, floor: float = tables.FP8_AMAX_FLOOR
) -> tuple[Tensor, Tensor]:
    """e4m3 codes with one ue8m0 scale per tile, by the rule of `rows.quantize_fp8`.

    Args:
        w: fp32 or bf16 [out, in].
        tile: 32 or 128.
        fp8_max: 448, 240 or 224.
        floor: smallest tile maximum to assume.

    Returns:
        codes uint8 [out, in] and scale bytes uint8 [ceil(out/tile), ceil(in/tile)].

    Raises:
        FormatError: not a matrix, another tile, dtype, fp8_max or floor than allowed.
    """
    down, across = grid_of(w.shape, tile)
    padded = F.pad(w, (0, across * tile - w.shape[1], 0, down * tile - w.shape[0]))
    flat = _to_tiles(padded, tile)
    codes, scale = rows.quantize_fp8(flat, tile * tile, fp8_max, floor)
    whole = _from_tiles(codes, tile)
    return whole[: w.shape[0], : w.shape[1]].contiguous(), scale.view(down, across)


def dequantize(codes: Tensor, scale: Tensor, tile: int = 32) -> Tensor:
    """Codes [out, in] (uint8 or float8_e4m3fn) and scale bytes of their tiles -> fp32 [out, in].

    Raises:
        FormatError: a grid of another tile size, or scales given as numbers.
    """
    codes = as_bytes(codes, "e4m3 codes", torch.float8_e4m3fn)
    check_grid(codes, scale, tile)
    out = torch.empty(codes.shape, dtype=torch.float32, device=codes.device)
    factors = ue8m0.decode(scale)
    step = max(1, _PART // max(1, codes.shape[1] * tile))  # rows of tiles at a time
    for first in range(0, len(factors), step):
        part = slice(first * tile, (first + step) * tile)
        wide = factors[first : first + step].repeat_interleave(tile, 0)
        out[part] = _across(e4m3.decode(codes[part]), wide[: len(codes) - part.start], tile)
    return out


def _across(values: Tensor, factors: Tensor, tile: int) -> Tensor:
    """values [r, in] times factors [r, ceil(in/tile)], each for `tile` neighbours (or the rest)."""
    whole = values.shape[1] // tile
    body = values[:, : whole * tile].view(len(values), whole, tile)
    body.mul_(factors[:, :whole, None])
    values[:, whole * tile :].mul_(factors[:, whole:])
    return values


def _to_tiles(w: Tensor, tile: int) -> Tensor:
    """[down*tile, across*tile] -> [down, across, tile*tile]."""
    down, across = w.shape[0] // tile, w.shape[1] // tile
    return w.view(down, tile, across, tile).transpose(1, 2).reshape(down, across, tile * tile)


def _from_tiles(flat: Tensor, tile: int) -> Tensor:
    """The inverse of `_to_tiles`."""
    down, across = flat.shape[:2]
    square = flat.view(down, across, tile, tile).transpose(1, 2)
    return square.reshape(down * tile, across * tile)
