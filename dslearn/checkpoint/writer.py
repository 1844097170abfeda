"""Write a checkpoint directory in the released layout: same input, same bytes.

Files are written under temporary names beside their targets and renamed when all are complete, the
index last; while it is being replaced the directory has no index, so no reader can see a mixture.
Source: docs/reference/checkpoint.md, "Files".
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dslearn.checkpoint import storage
from dslearn.checkpoint.inventory import DTYPE_BYTES
from dslearn.checkpoint.shards import INDEX, SINGLE
from dslearn.checkpoint.verify import verify
from dslearn.config import Config
from dslearn.errors import CheckpointError, UsageError

if TYPE_CHECKING:
    import torch

PARTIAL = ".partial-"


@dataclass(frozen=True)
class _Shape:
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


def write(
    directory: str | Path,
    config: dict[str, Any],
    tensors: Mapping[str, torch.Tensor],
    max_shard_bytes: int = 4 << 30,
    extra_files: Mapping[str, bytes | str] | None = None,
) -> None:
    """Write config.json, the shards and their index; an existing checkpoint there is replaced.

    Args:
        directory: created if absent; files that are not part of a checkpoint are left alone.
        config: the config.json as a dict, nested or flat.
        tensors: stored tensors by name, as `storage.quantise` returns them.
        max_shard_bytes: a shard is closed before it would grow beyond this; a larger tensor gets
            a shard of its own.
        extra_files: further files (tokenizer.json, ...), name -> content.

    Raises:
        ConfigError, CheckpointError: whatever the reader would refuse; nothing is written then.
        UsageError: a shard limit below 1 or an extra file name that is not a plain, free name.
    """
    heads = {name: _head(name, tensor) for name, tensor in tensors.items()}
    specs = verify(Config.from_dict(config), heads, "tensors to write")
    if max_shard_bytes < 1:
        raise UsageError(f"max_shard_bytes={max_shard_bytes}: must be at least 1")
    plan = _plan(list(specs), heads, max_shard_bytes)
    texts = {"config.json": _json(config), **_extra(extra_files or {}, plan)}
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for file, names in plan.items():
            _write_shard(folder / (PARTIAL + file), names, heads, tensors)
        for file, content in {**texts, INDEX: _index(plan, heads)}.items():
            (folder / (PARTIAL + file)).write_bytes(content)
        _publish(folder, [*plan, *texts])
    finally:
        for file in (*plan, *texts, INDEX):
            with suppress(FileNotFoundError):
                (folder / (PARTIAL + file)).unlink()


def _head(name: str, tensor: torch.Tensor) -> _Shape:
    if tensor.dtype not in storage.NAMES:
        raise CheckpointError(
            f"{name} is {tensor.dtype}, must be one of {', '.join(map(str, storage.NAMES))}"
        )
    dtype = storage.NAMES[tensor.dtype]
    return _Shape(dtype, tuple(tensor.shape), tensor.numel() * DTYPE_BYTES[dtype])


def _plan(order: list[str], heads: Mapping[str, _Shape], limit: int) -> dict[str, list[str]]:
    shards: list[list[str]] = [[]]
    size = 0
    for name in order:
        if shards[-1] and size + heads[name].nbytes > limit:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += heads[name].nbytes
    count = len(shards)
    return {f"model-{i:05d}-of-{count:05d}.safetensors": s for i, s in enumerate(shards, 1)}


def _write_shard(
    path: Path, names: list[str], heads: Mapping[str, _Shape], tensors: Mapping[str, torch.Tensor]
) -> None:
    # wide elements first: every tensor is then aligned to its element size for mapping readers
    ordered = sorted(names, key=lambda n: -DTYPE_BYTES[heads[n].dtype])
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name in ordered:
        head = heads[name]
        header[name] = {
            "dtype": head.dtype,
            "shape": list(head.shape),
            "data_offsets": [at, at + head.nbytes],
        }
        at += head.nbytes
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        for name in ordered:
            file.write(_bytes(tensors[name]))
        file.flush()
        os.fsync(file.fileno())


def _bytes(tensor: torch.Tensor) -> memoryview:
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def _index(plan: Mapping[str, list[str]], heads: Mapping[str, _Shape]) -> bytes:
    where = {name: file for file, names in plan.items() for name in names}
    total = sum(head.nbytes for head in heads.values())
    return _json({"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))})


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def _extra(files: Mapping[str, bytes | str], plan: Mapping[str, list[str]]) -> dict[str, bytes]:
    taken = {"config.json", INDEX, SINGLE, *plan}
    for name in files:
        if Path(name).name != name or name in taken or name.startswith("."):
            raise UsageError(
                f"extra file {name!r}: must be a plain file name other than {', '.join(taken)}"
            )
    return {name: c.encode() if isinstance(c, str) else c for name, c in files.items()}


def _publish(folder: Path, files: list[str]) -> None:
    old = _old_shards(folder)
    for file in (INDEX, SINGLE):
        with suppress(FileNotFoundError):
            (folder / file).unlink()
    for file in (*files, INDEX):
        os.replace(folder / (PARTIAL + file), folder / file)
    for file in old - set(files):
        with suppress(FileNotFoundError):
            (folder / file).unlink()


def _old_shards(folder: Path) -> set[str]:
    """Shards of the checkpoint being replaced, so that they do not stay behind."""
    try:
        shards = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values()
        return {str(s) for s in shards if Path(str(s)).name == s and s.endswith(".safetensors")}
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return set()
