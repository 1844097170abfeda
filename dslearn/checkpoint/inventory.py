"""Every tensor a checkpoint of a given config holds: name, dtype, shape, budget group.

The inventory is derived from the config alone, so a checkpoint can be judged from its headers
before any of its bytes are read. `names.entries` lists the logical weights (shapes of the matrices
a layer multiplies by); `stored` says which tensors of a file hold one of them in one format.
Source: docs/reference/checkpoint.md, "Inventory" and "Formats on disk".

Shape legend: O outputs, I inputs of a weight matrix.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dslearn.checkpoint.names import PARTS, Entry, Part, entries
from dslearn.errors import CheckpointError

if TYPE_CHECKING:
    from dslearn.config import Config

BLOCK = 32  # inputs that share one ue8m0 scale in an fp4 expert or an Engram row
DTYPE_BYTES = {
    "F8_E4M3": 1, "F8_E8M0": 1, "I8": 1, "U8": 1, "BOOL": 1, "F8_E5M2": 1,
    "BF16": 2, "F16": 2, "I16": 2, "U16": 2, "F32": 4, "I32": 4, "U32": 4,
    "F64": 8, "I64": 8, "U64": 8,
}  # fmt: skip


@dataclass(frozen=True)
class Spec:
    """One stored tensor: safetensors dtype name, shape, and its line of the byte budget."""

    dtype: str
    shape: tuple[int, ...]
    group: str

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor in its shard."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


def scale_name(weight: str) -> str:
    """Name of the scale tensor that belongs to `weight` (`x.weight` -> `x.scale`)."""
    return weight.removesuffix(".weight") + ".scale"


def tile_size(cfg: Config) -> int:
    """Side of a weight-scale tile; 32 where the config does not say (a mixed plain checkpoint)."""
    return cfg.quantization.weight_block_size if cfg.quantization else 32


def default_dtype(cfg: Config, entry: Entry) -> str:
    """The dtype the config promises for `entry`: what `inventory` lists and the writer expects."""
    if cfg.quantization is None or entry.kind == "plain":
        return entry.dtype
    if entry.kind == "expert" and cfg.quantization.expert_dtype == "fp4":
        return "I8"
    return "F8_E4M3"


def stored(cfg: Config, name: str, entry: Entry, dtype: str) -> dict[str, Spec]:
    """The tensors that hold `entry` when its payload has `dtype`: the weight and maybe a scale.

    Raises:
        CheckpointError: fp4 or Engram rows whose width 32 does not divide.
    """
    group, (*_, width) = entry.group, entry.shape
    if dtype not in ("I8", "F8_E4M3"):
        return {name: Spec(dtype, entry.shape, group)}
    per_row = dtype == "I8" or entry.kind == "rows"
    if per_row and width % BLOCK:
        raise CheckpointError(
            f"{name}: {width} columns; stored with one scale per {BLOCK} columns the width must be "
            f"a multiple of {BLOCK}. Choose such a size or store the tensor as BF16"
        )
    rows, tile = entry.shape[0], tile_size(cfg)
    payload = (rows, width // 2) if dtype == "I8" else (rows, width)
    grid = (rows, width // BLOCK) if per_row else (-(-rows // tile), -(-width // tile))
    return {
        name: Spec(dtype, payload, group),
        scale_name(name): Spec("F8_E8M0", grid, group),
    }


def inventory(cfg: Config, parts: tuple[Part, ...] = PARTS) -> dict[str, Spec]:
    """All tensors the config promises, in storage order: layer by layer, drafts, vision.

    For the released V4.1-Flash config these are 96,085 tensors and 510,286,023,000 bytes.
    """
    result: dict[str, Spec] = {}
    for name, entry in entries(cfg, parts).items():
        result.update(stored(cfg, name, entry, default_dtype(cfg, entry)))
    return result
