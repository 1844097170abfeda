"""What `dslearn inspect` prints: the inventory by group, one tensor, one tile taken apart.

Everything but a tile's own bytes comes from the headers, so a checkpoint of any size takes seconds.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from dslearn.checkpoint import taken
from dslearn.checkpoint.inventory import scale_name
from dslearn.checkpoint.reader import Checkpoint
from dslearn.errors import UsageError


def inspect(
    directory: str | Path, tensor: str | None = None, tile: str | tuple[int, int] | None = None
) -> list[str]:
    """Lines that describe the checkpoint in `directory`.

    Args:
        directory: a checkpoint directory.
        tensor: a stored tensor to describe instead of the whole.
        tile: `(row, column)` of a 32x32 tile of `tensor`, or the text "R,C".

    Raises:
        ConfigError, CheckpointError: a directory that does not open, an unknown tensor.
        UsageError: a tile without a tensor, not two numbers, or outside the matrix.
    """
    if tile is not None and tensor is None:
        raise UsageError("--tile needs --tensor NAME: a tile is part of one tensor")
    checkpoint = Checkpoint(directory)
    if tensor is None:
        return _overview(checkpoint)
    if tile is None:
        return _one(checkpoint, tensor)
    return taken.lines(taken.take_apart(checkpoint, tensor, _pair(tile)))


def _pair(tile: str | tuple[int, int]) -> tuple[int, int]:
    parts = tile.split(",") if isinstance(tile, str) else tile
    try:
        row, column = (int(p) for p in parts)
    except ValueError as error:
        raise UsageError(f"--tile {tile!r}: must be two whole numbers, row,column") from error
    return row, column


def _overview(checkpoint: Checkpoint) -> list[str]:
    groups = checkpoint.count("group")
    formats: dict[str, Counter[str]] = {group: Counter() for group in groups}
    for name in checkpoint.names:
        spec = checkpoint.spec(name)
        formats[spec.group][spec.dtype] += 1
    order = sorted(groups, key=lambda g: (-groups[g][1], g))
    table = [("group", "tensors", "bytes", "stored as (tensors)")]
    for group in order:
        number, size = groups[group]
        kinds = ", ".join(f"{k} ({n:,})" for k, n in formats[group].most_common())
        table.append((group, f"{number:,}", f"{size:,}", kinds))
    table.append(("total", f"{len(checkpoint.names):,}", f"{checkpoint.total_bytes:,}", ""))
    widths = [max(len(row[i]) for row in table) for i in range(3)]
    lines = [str(checkpoint.directory), _storage(checkpoint), ""]
    for row in table:
        left = row[0].ljust(widths[0])
        right = "  ".join(map(str.rjust, row[1:3], widths[1:]))
        lines.append(f"{left}  {right}  {row[3]}".rstrip())
    return [*lines, "", *_parts(checkpoint)]


def _storage(checkpoint: Checkpoint) -> str:
    shards = len({checkpoint.location(name).shard for name in checkpoint.names})
    quantization = checkpoint.config.quantization
    scales = sum(checkpoint.is_quantised(name) for name in checkpoint.names)
    said = (
        f"quantization_config: {quantization.weight_block_size}x{quantization.weight_block_size} "
        f"tiles, {quantization.expert_dtype} experts"
        if quantization
        else "no quantization_config"
    )
    return f"{shards} shard{'s' * (shards != 1)}; {said}; {scales:,} weights stored quantised"


def _parts(checkpoint: Checkpoint) -> list[str]:
    meaning = {
        "target": "the model that generates",
        "draft": "mtp.*: checked and counted, not loaded yet",
        "vision": "vision tower and aligner: checked and counted, not loaded yet",
    }
    return [
        f"{part}: {number:,} tensors, {size:,} bytes ({meaning[part]})"
        for part, (number, size) in checkpoint.count("part").items()
    ]


def _one(checkpoint: Checkpoint, name: str) -> list[str]:
    spec, where = checkpoint.spec(name), checkpoint.location(name)
    lines = [
        f"{name}: {spec.dtype} {list(spec.shape)}, {spec.nbytes:,} bytes, group {spec.group!r}",
        f"in {where.shard}, bytes {where.start:,} to {where.start + where.nbytes:,}",
    ]
    if checkpoint.is_quantised(name):
        scale = checkpoint.spec(scale_name(name))
        lines.append(f"scale {scale_name(name)}: {scale.dtype} {list(scale.shape)}")
    if len(spec.shape) == 2:
        rows, columns = taken.grid(checkpoint, name)
        lines.append(
            f"{rows} x {columns} tiles of 32x32: --tile R,C takes one apart "
            f"(0,0 to {rows - 1},{columns - 1})"
        )
    return lines
