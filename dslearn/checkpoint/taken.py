"""One 32x32 tile of a stored matrix, byte by byte: codes, scale, and what they mean on each side.

The same fp8 byte is read in two ways: the checkpoint's (largest value 448) and the IEEE e4m3 of
the chip (largest value 240, the codes above it inf or NaN). 242 of the 256 codes agree.
Source: docs/reference/checkpoint.md, "Formats on disk".
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dslearn.checkpoint.inventory import BLOCK, scale_name
from dslearn.checkpoint.reader import Checkpoint
from dslearn.errors import UsageError
from dslearn.formats import e2m1, e4m3, ue8m0

TILE = 32


@dataclass(frozen=True)
class Tile:
    """A tile taken apart; R rows and C columns, at most 32 each (fewer at the matrix' edge).

    Attributes:
        codes: uint8 [R, C], fp8 codes or unpacked fp4 codes; None for a plain tensor.
        scale_bytes: uint8, broadcastable to [R, C]: one byte, or one per row.
        values: fp32 [R, C] as the checkpoint means them (448 reading).
        ieee: fp32 [R, C] as an IEEE e4m3 reader sees the same bytes; equal to `values` for fp4.
        differs: bool [R, C], where the two readings disagree.
    """

    name: str
    dtype: str
    position: tuple[int, int]
    codes: torch.Tensor | None
    scale_bytes: torch.Tensor | None
    values: torch.Tensor
    ieee: torch.Tensor
    differs: torch.Tensor


def grid(checkpoint: Checkpoint, name: str) -> tuple[int, int]:
    """How many 32x32 tiles the matrix of `name` has, edges counted whole."""
    spec = checkpoint.spec(name)
    if len(spec.shape) != 2:
        raise UsageError(f"{name} is {list(spec.shape)}: only a matrix has tiles")
    columns = spec.shape[1] * (2 if spec.dtype == "I8" else 1)
    return -(-spec.shape[0] // TILE), -(-columns // TILE)


def take_apart(checkpoint: Checkpoint, name: str, position: tuple[int, int]) -> Tile:
    """Read the tile at `position` (row, column of the 32x32 grid); only its rows are read.

    Raises:
        CheckpointError: an unknown tensor.
        UsageError: not a matrix, or a tile outside it.
    """
    row, column = position
    rows, columns = grid(checkpoint, name)
    if not (0 <= row < rows and 0 <= column < columns):
        raise UsageError(
            f"--tile {row},{column}: {name} has {rows} x {columns} tiles, "
            f"0,0 to {rows - 1},{columns - 1}"
        )
    spec = checkpoint.spec(name)
    span = (row * TILE, min(row * TILE + TILE, spec.shape[0]))
    payload = checkpoint.tensor(name, span)
    if not checkpoint.is_quantised(name):
        # a scale tensor has no value of its own but 2^(byte - 127); others are plain numbers
        values = payload[:, column * TILE : (column + 1) * TILE].float()
        agree = torch.zeros_like(values, dtype=torch.bool)
        return Tile(name, spec.dtype, position, None, None, values, values, agree)
    codes = payload.view(torch.uint8)
    codes = e2m1.unpack(codes) if spec.dtype == "I8" else codes
    codes = codes[:, column * TILE : (column + 1) * TILE].contiguous()
    scale_bytes = _scale(checkpoint, name, span, column)
    scale = ue8m0.decode(scale_bytes)
    if spec.dtype == "I8":
        values = ieee = e2m1.decode(codes) * scale
    else:
        values, ieee = (e4m3.decode(codes, reading=r) * scale for r in ("ocp", "ieee"))
    same = (values == ieee) | (values.isnan() & ieee.isnan())
    return Tile(name, spec.dtype, position, codes, scale_bytes, values, ieee, ~same)


def _scale(checkpoint: Checkpoint, name: str, span: tuple[int, int], column: int) -> torch.Tensor:
    """The tile's scale bytes, [1, 1] or [R, 1]."""
    scale = scale_name(name)
    if checkpoint.is_per_row(name):
        first, last, at = *span, column * TILE // BLOCK
    else:
        first = span[0] // checkpoint.tile
        last, at = first + 1, column * TILE // checkpoint.tile
    return checkpoint.tensor(scale, (first, last)).view(torch.uint8)[:, at : at + 1].contiguous()


def lines(tile: Tile) -> list[str]:
    """The tile as text: codes in hex, scale, and every distinct code in both readings."""
    rows, columns = tile.values.shape
    row, column = tile.position
    head = f"{tile.name} ({tile.dtype}), tile {row},{column}: {rows}x{columns}"
    if tile.codes is None or tile.scale_bytes is None:
        body = (" ".join(f"{v:11.5g}" for v in row) for row in tile.values.tolist())
        return [head + ", stored plain", *body]
    return [head, *_codes(tile, tile.codes, tile.scale_bytes), "", *_table(tile, tile.codes)]


def _codes(tile: Tile, codes: torch.Tensor, scale_bytes: torch.Tensor) -> list[str]:
    width = 1 if tile.dtype == "I8" else 2
    numbers = scale_bytes.flatten().tolist()
    text = [" ".join(f"{code:0{width}x}" for code in row) for row in codes.tolist()]
    if len(numbers) == 1:
        return [f"scale byte {numbers[0]} = {_power(numbers[0])}", "codes (hex):", *text]
    both = zip(text, numbers, strict=True)
    lines = (f"{codes}   scale byte {byte} = {_power(byte)}" for codes, byte in both)
    return ["codes (hex) and the scale of each row:", *lines]


def _power(byte: int) -> str:
    return "NaN" if byte == 255 else f"2^{byte - 127} = {2.0 ** (byte - 127):g}"


def _table(tile: Tile, codes: torch.Tensor) -> list[str]:
    """One line per distinct code: how often, its value without the scale in both readings."""
    found, counts = codes.unique(return_counts=True)
    if tile.dtype == "I8":
        both = zip(found.tolist(), counts.tolist(), e2m1.decode(found).tolist(), strict=True)
        head = "code  count  value (times the row's scale)"
        return [head, *(f"   {code:x}  {count:5d}  {value:g}" for code, count, value in both)]
    ocp, ieee = (e4m3.decode(found, reading=reading).tolist() for reading in ("ocp", "ieee"))
    result = ["code  count  value, largest 448  value, largest 240 (IEEE), both times the scale"]
    for code, count, here, there in zip(found.tolist(), counts.tolist(), ocp, ieee, strict=True):
        mark = "  <- read differently" if here != there and here == here else ""
        result.append(f"  {code:02x}  {count:5d}  {here:18g}  {there:18g}{mark}")
    return [*result, _verdict(tile, codes)]


def _verdict(tile: Tile, codes: torch.Tensor) -> str:
    different = int(tile.differs.sum())
    line = f"{different} of {codes.numel()} bytes are read differently by the two sides"
    if not different:
        return line
    # odd codes below 0x10 have no half: they round when the tile is halved for the other reader
    small = codes & 0x7F
    rounds = int(((small < 0x10) & (small % 2 == 1)).sum())
    return f"{line}; halving the tile (scale byte + 1) makes them agree and rounds {rounds} codes"
