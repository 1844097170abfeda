"""A content hash of the target model: equal models, equal hash, however the files are cut.

Golden files carry it. Drafts and vision are left out, so adding them later keeps it; so are the
config fields that no logit depends on.
Source: docs/reference/checkpoint.md, "Content hash".
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import MISSING, Field, asdict, fields
from pathlib import Path
from typing import Any

from dslearn.checkpoint.names import part_of
from dslearn.checkpoint.reader import Checkpoint
from dslearn.config import Config, Quantization, Yarn

_IRRELEVANT = {
    "bos_token_id",
    "compress_ratios",  # hashed as the main layers' ratios: the released list covers drafts too
    "eos_token_id",
    "image_token_id",
    "max_position_embeddings",
    "num_nextn_predict_layers",
    "pad_token_id",
    "vision",
}


def target_hash(source: str | Path | Checkpoint) -> str:
    """Sha256 (hex) over name, dtype, shape and bytes of the target tensors and their config.

    Tensors are taken in name order and streamed in pieces of 8 MiB.

    Raises:
        ConfigError, CheckpointError: a directory that does not open.
    """
    checkpoint = source if isinstance(source, Checkpoint) else Checkpoint(source)
    digest = hashlib.sha256(config_text(checkpoint.config).encode())
    for name in sorted(n for n in checkpoint.names if part_of(n) == "target"):
        spec = checkpoint.spec(name)
        digest.update(f"\n{name} {spec.dtype} {list(spec.shape)}\n".encode())
        for piece in checkpoint.chunks(name):
            digest.update(piece)
    return digest.hexdigest()


def config_text(cfg: Config) -> str:
    """The fields that the target's arithmetic depends on, as canonical JSON.

    Fields at their default are left out: a field added to `Config` later, with the default that
    means "as before", keeps the hash of older checkpoints.
    """
    kept: dict[str, Any] = {"ratios": list(cfg.ratios)}
    for item in fields(cfg):
        value = getattr(cfg, item.name)
        if item.name in _IRRELEVANT or item.name.startswith("dspark_") or _is_default(item, value):
            continue
        kept[item.name] = asdict(value) if isinstance(value, (Yarn, Quantization)) else value
    return json.dumps(_plain(kept), sort_keys=True, separators=(",", ":"))


def _is_default(item: Field[Any], value: Any) -> bool:
    return item.default is not MISSING and value == item.default


def _plain(value: Any) -> Any:
    # 1 and 1.0 are the same setting: config files write either
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return int(value) if isinstance(value, float) and value == int(value) else value
