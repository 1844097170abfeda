"""Between fp32 matrices and the tensors of a file: one function each way.

Payloads and scales keep the dtypes of the file (float8_e4m3fn, float8_e8m0fnu, int8); the codecs of
`dslearn.formats` work on their bytes.
Source: docs/reference/checkpoint.md, "Formats on disk".

Shape legend: O outputs, I inputs; a scale is [ceil(O/tile), ceil(I/tile)] or [O, I/32].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch

from dslearn.checkpoint.inventory import BLOCK, default_dtype, scale_name, stored, tile_size
from dslearn.checkpoint.names import Entry, Kind, entries
from dslearn.errors import CheckpointError
from dslearn.formats import rows, tiles

if TYPE_CHECKING:
    from dslearn.config import Config

TORCH_DTYPES = {
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I8": torch.int8,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
}
NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}

# Engram rows are stored with the scale their own values ask for; the activation floor of 1e-4
# would cost small rows their precision.
ROW_FLOOR = 1e-30


def dequantise(kind: Kind, payload: torch.Tensor, scale: torch.Tensor, tile: int) -> torch.Tensor:
    """The fp32 matrix [O, I] that a stored payload and its scale stand for.

    Args:
        kind: "linear", "expert" or "rows" of `Entry`.
        payload: int8 [O, I/2] (fp4, low nibble first) or float8_e4m3fn [O, I].
        scale: float8_e8m0fnu, per tile or per 32 columns.
        tile: side of a scale tile.
    """
    codes, scales = payload.view(torch.uint8), scale.view(torch.uint8)
    if payload.dtype == torch.int8:
        return rows.dequantize_fp4(codes, scales)
    if kind == "rows":
        return rows.dequantize_fp8(codes, scales)
    return tiles.dequantize(codes, scales, tile=tile)


def quantise(
    cfg: Config,
    dense: Mapping[str, torch.Tensor],
    dtype_of: Callable[[str, Entry], str] | None = None,
) -> dict[str, torch.Tensor]:
    """Store a dense state dict in the checkpoint's formats: what `write` takes.

    Args:
        cfg: decides names, shapes and (by default) formats.
        dense: fp32 matrices [O, I] and vectors by weight name; absent drafts or vision stay absent.
        dtype_of: `(name, entry) -> safetensors dtype` of the payload, for mixed or fp32 files;
            the default is the config's own choice (bf16 linears without quantization_config).

    Raises:
        CheckpointError: names the config does not know, shapes that are not the matrix shape, a
            width that the format's block does not divide.
    """
    logical = entries(cfg)
    unknown = [name for name in dense if name not in logical]
    if unknown:
        raise CheckpointError(
            f"{len(unknown)} weights the config does not describe: {', '.join(unknown[:8])}"
        )
    result: dict[str, torch.Tensor] = {}
    for name, entry in logical.items():
        if name in dense:
            dtype = dtype_of(name, entry) if dtype_of else default_dtype(cfg, entry)
            result.update(_pack(cfg, name, entry, dense[name], dtype))
    return result


def _pack(
    cfg: Config, name: str, entry: Entry, value: torch.Tensor, dtype: str
) -> dict[str, torch.Tensor]:
    if tuple(value.shape) != entry.shape:
        raise CheckpointError(f"{name} is {list(value.shape)}, must be {list(entry.shape)}")
    if dtype not in TORCH_DTYPES:
        raise CheckpointError(f"{name}: dtype {dtype!r}, must be one of {', '.join(TORCH_DTYPES)}")
    if dtype not in ("I8", "F8_E4M3"):
        return {name: value.to(TORCH_DTYPES[dtype])}
    stored(cfg, name, entry, dtype)  # refuses a width the blocks do not divide
    value = value.float()
    if dtype == "I8":
        codes, scale = rows.quantize_fp4(value, block=BLOCK, scale="ue8m0")
    elif entry.kind == "rows":
        codes, scale = rows.quantize_fp8(value, block=BLOCK, floor=ROW_FLOOR)
    else:
        codes, scale = tiles.quantize(value, tile=tile_size(cfg))
    return {
        name: codes.view(TORCH_DTYPES[dtype]),
        scale_name(name): scale.view(torch.float8_e8m0fnu),
    }
