"""Checkpoint bytes to bytes that trn2 reads: half the value, twice the scale.

trn2 reads e4m3 with infinities, so codes above 0x77 (240) mean infinity or NaN there. Halving all
values of a tile and adding one to its ue8m0 byte keeps the weights, and its largest code becomes
0x76 (224). Eight codes per sign round: the odd codes below 0x10 need one bit more than they have,
and each of them moves by exactly one step, 2^-9 of the tile's scale.

Legend: codes [out, in], tiles of h x w codes, scale bytes [ceil(out/h), ceil(in/w)].
Source: docs/reference/formats.md, "Device convention".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dslearn.errors import FormatError
from dslearn.formats import tables, ue8m0
from dslearn.formats.bits import as_bytes
from dslearn.formats.halve import EIGHT, MAGNITUDE, Bytes, half_steps, in_threads, keep_nan, room
from dslearn.formats.tiles import check_grid

Mode = Literal["every", "needed"]
Mask: TypeAlias = NDArray[np.bool_]
Counts: TypeAlias = NDArray[np.integer[Any]]
Band: TypeAlias = tuple[int, int, int]
_STEP = 2.0**tables.E4M3_STEP_LOG2
_BAND = 1 << 21  # bytes between two meetings of threads: shorter bands wait for the interpreter
_ODD_AND_SMALL = np.uint8(0x71)  # leaves 1 of the codes that do not halve exactly
_ABOVE_240 = (tables.E4M3_IEEE_LAST_FINITE + 1) >> 1  # half steps of the codes above 0x77


@dataclass(frozen=True)
class Report:
    """What a conversion did.

    Attributes:
        tiles: tiles that were halved.
        of_tiles: tiles of the weight.
        rounded: codes whose half does not exist and was rounded.
        max_error: largest change of a weight (code times scale), 0.0 if none changed.
    """

    tiles: int
    of_tiles: int
    rounded: int
    max_error: float


def to_device(
    codes: Tensor,
    scale: Tensor,
    tile: int = 32,
    mode: Mode = "every",
    threads: int = 2,
    in_place: bool = False,
) -> tuple[Tensor, Tensor, Report]:
    """A weight in tiles to the device convention.

    Args:
        codes: uint8 or float8_e4m3fn [out, in], on the CPU.
        scale: uint8 or float8_e8m0fnu [ceil(out/tile), ceil(in/tile)].
        tile: 32 or 128.
        mode: "every" halves all tiles, as the reference engine does; "needed" only those that
            hold a code above 0x77, which leaves more weights exact.
        threads: threads that share the work.
        in_place: overwrite `codes` and return them: no new pages, which cost more than the work.

    Returns:
        New uint8 codes and scale bytes of the same shapes, and a `Report`.

    Raises:
        FormatError: a scale grid of another tile size, an unknown mode, or a tile to be halved
            whose scale byte has no successor (254, or 255, which is NaN).
    """
    check_grid(codes, scale, tile)
    return _convert(codes, scale, (tile, tile), mode, threads, in_place)


def rows_to_device(
    codes: Tensor, scale: Tensor, mode: Mode = "every", threads: int = 2, in_place: bool = False
) -> tuple[Tensor, Tensor, Report]:
    """Rows with block scales (Engram tables) to the device convention, like `to_device`.

    Args:
        codes: uint8 or float8_e4m3fn [rows, K].
        scale: uint8 or float8_e8m0fnu [rows, K/B].
        mode: as in `to_device`; a "tile" is one block of a row.
        threads: threads that share the work.
        in_place: overwrite `codes`.

    Raises:
        FormatError: as `to_device`; shapes that do not fit.
    """
    if codes.ndim != 2 or scale.ndim != 2 or codes.shape[0] != scale.shape[0]:
        raise FormatError(
            f"codes {tuple(codes.shape)} with scales {tuple(scale.shape)}: must be [rows, K] "
            "and [rows, K/B]"
        )
    width, rest = divmod(codes.shape[1], max(scale.shape[1], 1))
    if rest or not width:
        raise FormatError(
            f"{codes.shape[1]} codes in {scale.shape[1]} blocks per row: the number of blocks "
            "must divide the row length"
        )
    return _convert(codes, scale, (1, width), mode, threads, in_place)


def _convert(
    codes: Tensor, scale: Tensor, tile: tuple[int, int], mode: str, threads: int, in_place: bool
) -> tuple[Tensor, Tensor, Report]:
    """Cut the matrix into bands of whole tile rows and share them between threads."""
    if mode not in ("every", "needed"):
        raise FormatError(f"mode={mode!r}: must be 'every' or 'needed'")
    data = as_bytes(codes, "e4m3 codes", torch.float8_e4m3fn)
    if in_place and not data.is_contiguous():
        raise FormatError(
            f"in_place=True with codes of strides {data.stride()}: only contiguous codes can be "
            "overwritten; pass a contiguous tensor or in_place=False"
        )
    old = data.contiguous().numpy()
    byte = as_bytes(scale, "ue8m0 scale", torch.float8_e8m0fnu).contiguous().numpy()
    _check_successors(old, byte, tile, mode)
    new = old if in_place else np.empty_like(old)
    halved, inexact = np.ones(byte.shape, np.bool_), np.zeros(byte.shape, np.int64)

    def work(bands: list[Band]) -> None:
        scratch = room(max(n * h for _, n, h in bands) * old.shape[1])
        for first, count, height in bands:
            rows = slice(first * tile[0], first * tile[0] + count * height)
            grid = slice(first, first + count)
            block = old[rows].reshape(count, height, -1)
            loss, spare = (a.reshape(block.shape) for a in half_steps(block.reshape(-1), scratch))
            inexact[grid] = _count_inexact(block, loss, spare, tile[1])
            if mode == "needed":
                halved[grid] = _per_tile(np.maximum, loss, tile[1], np.uint8) >= _ABOVE_240
            most = np.repeat(halved[grid].view(np.uint8) * EIGHT, tile[1], axis=1)
            np.minimum(loss, most[:, None, : old.shape[1]], out=loss)
            keep_nan(block, loss)
            np.subtract(block, loss, out=new[rows].reshape(block.shape))

    bands = _bands(old.shape, tile[0])
    in_threads(work, [bands[i::threads] for i in range(min(threads, len(bands)))], threads)
    inexact *= halved
    scales = ue8m0.decode(torch.from_numpy(byte)).numpy()
    error = float(scales[inexact > 0].max(initial=0)) * _STEP
    report = Report(int(halved.sum()), halved.size, int(inexact.sum()), error)
    return torch.from_numpy(new), torch.from_numpy(byte + halved.view(np.uint8)), report


def _check_successors(old: Bytes, byte: Bytes, tile: tuple[int, int], mode: str) -> None:
    """Refuse, before anything is written, tiles whose scale byte cannot grow by one."""
    for row, column in np.argwhere(byte >= tables.E8M0_LARGEST).tolist():
        rows = slice(row * tile[0], (row + 1) * tile[0])
        codes = old[rows, column * tile[1] : (column + 1) * tile[1]] & MAGNITUDE
        if mode == "every" or codes.max() > tables.E4M3_IEEE_LAST_FINITE:
            raise FormatError(
                f"scale byte {byte[row, column]} of tile ({row}, {column}) has no successor, so "
                "its values cannot be halved; scale bytes must be 253 or less; is the file damaged?"
            )


def _bands(shape: tuple[int, ...], height: int) -> list[Band]:
    """First tile row, number of tile rows and their height, for pieces of about _BAND bytes."""
    full, rest = divmod(shape[0], height)
    step = max(1, _BAND // max(1, height * shape[1]))
    bands = [(first, min(step, full - first), height) for first in range(0, full, step)]
    return [*bands, (full, 1, rest)] if rest else bands


def _count_inexact(block: Bytes, steps: Bytes, spare: Bytes, width: int) -> Counts:
    """Odd codes below 0x10 per tile; steps: `half_steps` of block, spare: scratch of its shape.

    A trained weight has few codes below 0x10: only the columns of tiles that hold one are read.
    """
    rows, height, columns = block.shape
    small = np.flatnonzero(np.minimum.reduce(steps, axis=1) < EIGHT)
    if small.size > rows * columns // 8:
        np.bitwise_and(block, _ODD_AND_SMALL, out=spare)
        np.equal(spare, np.uint8(1), out=spare.view(np.bool_))
        return _per_tile(np.add, spare, width, np.int64)
    row, column = np.divmod(small, columns)
    odd = np.flatnonzero(block[row, :, column] & _ODD_AND_SMALL == 1) // height
    tiles = -(-columns // width)
    tile = row[odd] * tiles + column[odd] // width
    return np.bincount(tile, minlength=rows * tiles).reshape(rows, tiles)


def _per_tile(reduce: np.ufunc, block: Bytes, width: int, kind: type[np.integer[Any]]) -> Counts:
    """Reduce [n, h, in] over tiles -> [n, ceil(in/width)]; a column of a tile must fit a byte."""
    columns = reduce.reduce(block, axis=1, dtype=np.uint8)
    if columns.shape[1] % width:
        columns = np.pad(columns, ((0, 0), (0, -columns.shape[1] % width)))
    tiles = columns.reshape(len(block), -1, width)
    result: Counts = reduce.reduce(tiles, axis=2, dtype=kind)
    return result
