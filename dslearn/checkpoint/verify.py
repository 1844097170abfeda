"""Judge the tensors of a checkpoint against its config, from names, dtypes and shapes alone.

What is stored decides, weight by weight, whether a weight is quantised: an fp8 or fp4 payload must
have its scale, a bf16 or fp32 one must not. Draft and vision tensors are all there or all absent.
Source: docs/reference/checkpoint.md, "What is accepted".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from dslearn.checkpoint.inventory import Spec, default_dtype, scale_name, stored, tile_size
from dslearn.checkpoint.names import PARTS, Entry, Part, entries, part_of
from dslearn.checkpoint.shards import listed
from dslearn.errors import CheckpointError

if TYPE_CHECKING:
    from dslearn.config import Config


class Header(Protocol):
    """Anything with a safetensors dtype name and a shape."""

    @property
    def dtype(self) -> str:
        """Such as "BF16"."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Such as (5120, 1280)."""


@dataclass
class _Findings:
    expected: dict[str, Spec] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    types: list[str] = field(default_factory=list)
    shapes: list[str] = field(default_factory=list)
    grids: list[str] = field(default_factory=list)
    loose: list[str] = field(default_factory=list)


def verify(cfg: Config, found: Mapping[str, Header], where: str) -> dict[str, Spec]:
    """Return the `Spec` of every tensor of `found`, in storage order.

    Args:
        cfg: the checkpoint's config.
        found: dtype and shape of each stored tensor, by name.
        where: what to call the checkpoint in messages.

    Raises:
        CheckpointError: one message with every kind of problem, each with its keys: missing,
            unexpected, mis-typed and mis-shaped tensors, scale grids of another tile size,
            scales beside weights that are not quantised.
    """
    result = _Findings()
    parts = present_parts(found)
    logical = entries(cfg, parts)
    skipped = {name for name, entry in logical.items() if entry.optional and name not in found}
    if len(skipped) < sum(entry.optional for entry in logical.values()):
        skipped = set()  # some layers have the optional tensor: then all must
    for name, entry in logical.items():
        if name not in skipped:
            _judge(cfg, name, entry, found, result)
    _raise(cfg, found, result, where)
    return result.expected


def present_parts(found: Mapping[str, Header]) -> tuple[Part, ...]:
    """The parts a checkpoint claims to hold: the target, and drafts or vision if any is there."""
    seen = {part_of(name) for name in found} | {"target"}
    return tuple(part for part in PARTS if part in seen)


def allowed_dtypes(cfg: Config, entry: Entry) -> tuple[str, ...]:
    """The payload dtypes accepted for `entry`, the one the config promises first."""
    if entry.kind == "plain":
        # fp32 where bf16 is the rule loses nothing; bf16 where fp32 is the rule only in plain files
        narrow = entry.dtype == "BF16" or cfg.quantization is None
        return (entry.dtype, "F32" if entry.dtype == "BF16" else "BF16") if narrow else ("F32",)
    first = default_dtype(cfg, entry)
    if cfg.quantization is not None:
        return (first, "BF16", "F32")
    return ("BF16", "F32", "F8_E4M3", *(["I8"] if entry.kind == "expert" else []))


def _judge(
    cfg: Config, name: str, entry: Entry, found: Mapping[str, Header], result: _Findings
) -> None:
    choices = allowed_dtypes(cfg, entry)
    dtype = found[name].dtype if name in found else choices[0]
    known = dtype in choices
    specs = stored(cfg, name, entry, dtype if known else choices[0])
    result.expected.update(specs)
    if not known:
        result.types.append(f"{name} is {dtype}, must be {' or '.join(choices)}")
        return
    for key, spec in specs.items():
        if key not in found:
            result.missing.append(key)
        elif found[key].dtype != spec.dtype:
            result.types.append(f"{key} is {found[key].dtype}, must be {spec.dtype}")
        elif tuple(found[key].shape) != spec.shape:
            wrong = f"{key} is {list(found[key].shape)}, must be {list(spec.shape)}"
            grid = _grid_of(entry.shape, tuple(found[key].shape)) if key != name else None
            if grid:
                result.grids.append(f"{wrong} (it is {grid})")
            else:
                result.shapes.append(wrong)
    if len(specs) == 1 and entry.kind != "plain" and scale_name(name) in found:
        result.loose.append(f"{scale_name(name)} beside {name} ({dtype})")
        result.expected[scale_name(name)] = specs[name]


def _grid_of(shape: tuple[int, ...], grid: tuple[int, ...]) -> str | None:
    """What a scale of shape `grid` is for a weight [O, I] of `shape`; None if nothing known."""
    rows, columns = shape
    for tile in (128, 32, 64, 16, 256):
        if grid == (-(-rows // tile), -(-columns // tile)):
            return f"a grid of {tile}x{tile} tiles"
    for width in (32, 128, 16, 64):
        if grid == (rows, -(-columns // width)):
            return f"one scale per {width} columns of a row"
    return None


def _raise(cfg: Config, found: Mapping[str, Header], result: _Findings, where: str) -> None:
    extra = [name for name in found if name not in result.expected]
    tile = tile_size(cfg)
    said = "weight_block_size" if cfg.quantization else "no quantization_config, so"
    kinds = (
        (result.missing, "tensors missing"),
        (extra, "tensors unexpected"),
        (result.types, "tensors of a wrong dtype"),
        (result.shapes, "tensors of a wrong shape"),
        (result.grids, f"scale grids of a wrong tile or block size (config: {said} {tile}x{tile})"),
        (result.loose, "scales beside a weight that is not quantised"),
    )
    problems = [listed(keys, what) for keys, what in kinds if keys]
    if problems:
        hint = _hint(cfg, extra)
        raise CheckpointError(f"{where}: {'; '.join(problems)}; {hint}")


def _hint(cfg: Config, extra: list[str]) -> str:
    if extra and all(name.startswith("model.") for name in extra):
        return "names carry no 'model.' prefix: rename the tensors"
    if any(part_of(name) == "draft" for name in extra) and not cfg.num_nextn_predict_layers:
        return "the config has num_nextn_predict_layers=0, so no mtp.* tensor belongs here"
    if any(part_of(name) == "vision" for name in extra) and not cfg.vision:
        return "the config has no vision_config, so no vision tensor belongs here"
    return "nothing was loaded; the tensors must be those the config describes"
