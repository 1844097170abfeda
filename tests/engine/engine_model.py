"""A random checkpoint that speaks: tiny's tokenizer on small random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dslearn.checkpoint.storage import quantise
from dslearn.checkpoint.writer import write
from dslearn.config import Config
from dslearn.engine.lm import model_directory
from tests.support.random_model import random_dense, tiny_random_config

TOKENIZER = model_directory("tiny") / "tokenizer.json"
SIZES: dict[str, Any] = {
    "vocab_size": 2048,
    "engram_compressed_vocab_size": 1528,
    "image_token_id": 2046,
    "dspark_noise_token_id": 2047,
    "max_position_embeddings": 256,
}


def random_weights(**overrides: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """config.json as a dict, and the stored tensors; `overrides` are config fields."""
    raw = tiny_random_config(**{**SIZES, **overrides})
    cfg = Config.from_dict(raw)
    dense = random_dense(cfg, seed=3)
    # The first head rows are the special tokens: a random model would stop at once now and then.
    dense["head.weight"][:3] = 0.0
    return raw, quantise(cfg, dense)


def save_random_lm(directory: Path, *, tokenizer: bool = True, **overrides: Any) -> Path:
    """Write such a checkpoint with its tokenizer (or without); returns `directory`."""
    raw, tensors = random_weights(**overrides)
    write(directory, raw, tensors, extra_files={"tokenizer.json": TOKENIZER.read_bytes()})
    if not tokenizer:
        (directory / "tokenizer.json").unlink()
    return directory
