"""Safetensors files as headers and byte ranges; no tensor is touched here.

A shard is 8 bytes of header length (little endian), a JSON header that gives every tensor a
dtype, a shape and a byte range, then the bytes. Everything that can be wrong with the files
themselves is found before any tensor is read: absent or truncated shards, byte ranges that do not
tile the file, an index that disagrees with the headers.
Source: docs/reference/checkpoint.md, "Files".
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dslearn.checkpoint.inventory import DTYPE_BYTES
from dslearn.errors import CheckpointError
from dslearn.files import need_directory, readable

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_HEADER = 100_000_000  # the format's own limit; more means the file is not safetensors


@dataclass(frozen=True)
class Stored:
    """One tensor as a shard's header describes it; `start` is its first byte in the file."""

    dtype: str
    shape: tuple[int, ...]
    shard: str
    start: int
    nbytes: int


def listed(keys: Iterable[str], what: str) -> str:
    """`3 tensors missing: a, b, c`: the count and the first eight keys."""
    names = list(keys)
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"{len(names)} {what}: {', '.join(names[:8])}{more}"


def locate(directory: Path) -> dict[str, Stored]:
    """Find every tensor of the checkpoint in `directory` from its index and its shards' headers.

    Raises:
        CheckpointError: no index and no single file; absent or broken shards; an index and
            headers that disagree. The message lists the files or tensors.
    """
    with readable(directory):
        weight_map = _weight_map(directory)
        shards = sorted(set(weight_map.values())) if weight_map else [SINGLE]
        absent = [name for name in shards if not (directory / name).is_file()]
    if absent:
        lost = [name for name, shard in (weight_map or {}).items() if shard in absent]
        raise CheckpointError(
            f"{directory}: {listed(absent, 'shard files absent that the index names')}; with "
            f"{listed(lost, 'tensors')}; download them again or fix the index"
        )
    held: dict[str, list[str]] = {name: [] for name in shards}
    for name, shard in (weight_map or {}).items():
        held[shard].append(name)
    headers = {shard: read_header(directory / shard, names) for shard, names in held.items()}
    if weight_map is None:
        return headers[SINGLE]
    return _agree(directory, weight_map, headers)


def _weight_map(directory: Path) -> dict[str, str] | None:
    need_directory(directory)
    path = directory / INDEX
    if not path.is_file():
        if (directory / SINGLE).is_file():
            return None
        raise CheckpointError(f"{directory}: holds neither {INDEX} nor {SINGLE}; not a checkpoint")
    try:
        weight_map = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: not an index with a weight_map ({error!r})") from error
    good = isinstance(weight_map, dict) and all(isinstance(v, str) for v in weight_map.values())
    if not good or not weight_map:
        raise CheckpointError(f"{path}: weight_map must map tensor names to file names, not empty")
    outside = sorted({v for v in weight_map.values() if Path(v).name != v})
    if outside:
        raise CheckpointError(
            f"{path}: {listed(outside, 'shard names with a folder')}; shards lie beside the index"
        )
    return weight_map


def _agree(
    directory: Path, weight_map: dict[str, str], headers: dict[str, dict[str, Stored]]
) -> dict[str, Stored]:
    problems = []
    lost = [name for name, shard in weight_map.items() if name not in headers[shard]]
    if lost:
        problems.append(listed(lost, "tensors absent from the shard the index names"))
    unnamed = [
        f"{name} ({shard})"
        for shard, header in headers.items()
        for name in header
        if weight_map.get(name) != shard
    ]
    if unnamed:
        problems.append(listed(unnamed, "tensors in a shard that the index does not name there"))
    if problems:
        raise CheckpointError(f"{directory}: {'; '.join(problems)}; index and shards must agree")
    return {name: headers[shard][name] for name, shard in weight_map.items()}


def read_header(path: Path, held: Sequence[str] = ()) -> dict[str, Stored]:
    """Parse one shard's header; the byte ranges must tile the rest of the file exactly.

    Args:
        path: the shard.
        held: tensors that the index places there, named when the header itself cannot be read.

    Raises:
        CheckpointError: not a safetensors file, truncated, or ranges that overlap, leave holes
            or do not fit dtype and shape.
    """
    lost = f"; with {listed(held, 'tensors')}" if held else ""
    with readable(path), path.open("rb") as file:
        size = path.stat().st_size
        length = int.from_bytes(file.read(8), "little")
        raw = file.read(length) if length <= MAX_HEADER else b""
    if length > MAX_HEADER:
        raise CheckpointError(f"{path}: not safetensors, a header of {length:,} bytes{lost}")
    if size < 8 or len(raw) < length:
        raise CheckpointError(
            f"{path}: truncated inside its header, {size} of at least {8 + length} bytes; "
            f"download it again{lost}"
        )
    try:
        header = json.loads(raw)
        header.pop("__metadata__", None)
        found = {name: _entry(path, name, raw, 8 + length) for name, raw in header.items()}
    except CheckpointError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: header is not safetensors ({error!r}){lost}") from error
    _tile(path, found, 8 + length, size)
    return found


def _entry(path: Path, name: str, raw: dict[str, Any], base: int) -> Stored:
    start, end = (int(x) for x in raw["data_offsets"])
    dtype, shape = str(raw["dtype"]), tuple(int(x) for x in raw["shape"])
    width = DTYPE_BYTES.get(dtype)
    if start < 0 or end < start or min(shape, default=0) < 0:
        raise CheckpointError(f"{path}: {name}: byte range {start} to {end}, shape {list(shape)}")
    if width is not None and math.prod(shape) * width != end - start:
        raise CheckpointError(
            f"{path}: {name} is {dtype} {list(shape)}, {math.prod(shape) * width} bytes, but its "
            f"byte range holds {end - start}"
        )
    return Stored(dtype, shape, path.name, base + start, end - start)


def _tile(path: Path, found: dict[str, Stored], start: int, size: int) -> None:
    cut = [name for name, t in found.items() if t.start + t.nbytes > size]
    if cut:
        need = max(found[name].start + found[name].nbytes for name in cut)
        raise CheckpointError(
            f"{path}: truncated, {size} of {need} bytes; {listed(cut, 'tensors cut off')}; "
            "download it again"
        )
    at = start
    for name, tensor in sorted(found.items(), key=lambda item: (item[1].start, item[1].nbytes)):
        if tensor.start != at:
            raise CheckpointError(
                f"{path}: {name} starts at byte {tensor.start}, expected {at}: tensors must follow "
                "each other without holes or overlap"
            )
        at += tensor.nbytes
    if at != size:
        raise CheckpointError(f"{path}: {size - at} bytes after the last tensor; not safetensors")
