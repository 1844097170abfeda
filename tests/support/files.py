"""Write and damage checkpoint files without dslearn's own writer: safetensors' library does it."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

INDEX = "model.safetensors.index.json"


def save_single(directory: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Path:
    """config.json and one model.safetensors, as most small third-party checkpoints come."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    save_file(
        {k: v.contiguous().clone() for k, v in tensors.items()}, directory / "model.safetensors"
    )
    return directory


def save_sharded(
    directory: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor], shards: int
) -> dict[str, str]:
    """The same in `shards` files with an index; returns the weight map."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    names, weight_map = list(tensors), {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = names[i::shards]
        save_file({k: tensors[k].contiguous().clone() for k in part}, directory / file)
        weight_map.update(dict.fromkeys(part, file))
    write_index(directory, weight_map)
    return weight_map


def write_index(directory: Path, weight_map: dict[str, str]) -> None:
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def write_raw(path: Path, header: dict[str, Any] | bytes, data: bytes) -> None:
    """A safetensors file with any header, right or wrong."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)
