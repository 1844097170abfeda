"""From a checkpoint directory to a `Model` with its Engram token map."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from dslearn.checkpoint.reader import Checkpoint
from dslearn.config import Config
from dslearn.errors import CheckpointError
from dslearn.files import readable
from dslearn.model import weights
from dslearn.model.engram_hash import EngramHash
from dslearn.model.engram_tokens import token_map
from dslearn.model.model import Model
from dslearn.numerics import Numerics


def load_model(
    directory: str | Path,
    numerics: Numerics | None = None,
    *,
    engram_token_map: np.ndarray | torch.Tensor | None = None,
    engram_pad_id: int | None = None,
) -> Model:
    """Read config, tensors and (for Engram) the tokenizer of `directory`.

    Args:
        numerics: switches, default `Numerics()`.
        engram_token_map: int64 [vocab_size] compressed id per token, instead of the one that the
            directory's tokenizer.json gives.
        engram_pad_id: compressed id of the pad token, default the map's entry for
            `engram_pad_token_id`.

    Raises:
        CheckpointError: tensors that are not what the config says, or no tokenizer for Engram.
        ConfigError: a config this library does not implement, or a map that does not fit it.
    """
    checkpoint = Checkpoint(directory)
    cfg = checkpoint.config
    hashing = None
    if cfg.engram_layer_ids:
        if engram_token_map is None:
            engram_token_map = token_map(_needed_tokenizer(Path(directory)))
        mapping = torch.as_tensor(np.asarray(engram_token_map))
        hashing = _hash(cfg, mapping.to(torch.int64), engram_pad_id)
    model = Model(cfg, numerics, hashing)
    weights.load(model, checkpoint)
    return model.eval()


def _hash(cfg: Config, mapping: torch.Tensor, pad_id: int | None) -> EngramHash:
    if mapping.shape != (cfg.vocab_size,):
        raise CheckpointError(
            f"the Engram token map has shape {tuple(mapping.shape)}: one entry per token id "
            f"(vocab_size={cfg.vocab_size}); pass the map that belongs to this checkpoint"
        )
    return EngramHash(
        cfg, mapping, int(mapping[cfg.engram_pad_token_id]) if pad_id is None else pad_id
    )


def read_tokenizer(directory: Path) -> Tokenizer | None:
    """The tokenizer in tokenizer.json of `directory`, None without that file.

    Raises:
        CheckpointError: the file cannot be read, or holds no tokenizer.
    """
    path = directory / "tokenizer.json"
    with readable(path):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
    try:
        return Tokenizer.from_buffer(data)
    except Exception as error:  # the library has no narrower class
        raise CheckpointError(f"{path}: not a tokenizer ({error}); fetch the file again") from error


def _needed_tokenizer(directory: Path) -> Tokenizer:
    tokenizer = read_tokenizer(directory)
    if tokenizer is None:
        raise CheckpointError(
            f"{directory / 'tokenizer.json'}: no such file; Engram compresses token ids by it. Add "
            "it, or pass engram_token_map and engram_pad_id"
        )
    return tokenizer
