"""Bits per byte of a checkpoint on the held-out files, computed by the library."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import tokens
from dslearn.model import Model
from dslearn.model.loading import load_model
from dslearn.numerics import Numerics

BATCH_TOKENS = 8192


def windows(ids: Tensor, context: int) -> list[tuple[Tensor, int]]:
    """Cut one file [N] into pieces of at most `context` + 1 ids that overlap by half.

    -> (piece, number of leading predictions that an earlier piece has scored).
    """
    pieces, start, scored = [], 0, 0
    while scored < len(ids) - 1:
        piece = ids[start : start + context + 1]
        pieces.append((piece, scored - start))
        scored = start + len(piece) - 1
        start += context // 2
    return pieces


def nats(model: Model, files: list[Tensor], context: int) -> float:
    """Summed negative log likelihood of every token after the first of each file."""
    pieces = sorted((w for ids in files for w in windows(ids, context)), key=lambda w: -len(w[0]))
    total, at = 0.0, 0
    rows = max(1, BATCH_TOKENS // context)
    while at < len(pieces):
        group = pieces[at : at + rows]
        at += rows
        width = len(group[0][0])
        padded = torch.stack([F.pad(piece, (0, width - len(piece))) for piece, _ in group])
        with torch.inference_mode():
            logp = model(padded[:, :-1]).log_softmax(-1)
        picked = -logp.gather(-1, padded[:, 1:, None]).squeeze(-1)
        for row, (piece, skip) in zip(picked, group, strict=True):
            total += float(row[skip : len(piece) - 1].double().sum())
    return total


def held_out_bits(
    directory: Path,
    cache: Path,
    limit: int | None = None,
    context: int = 512,
    numerics: Numerics | None = None,
) -> float:
    """Bits per byte of the checkpoint in `directory` over held-out files.

    Args:
        cache: token cache directory (tools/tokens.py).
        limit: stop after the file that reaches this many tokens; None takes all.
        context: tokens a prediction may look back, at least half of it.
        numerics: switches; the default is what the checkpoint asks for.
    """
    split = tokens.load("held-out", cache)
    model = load_model(directory, numerics or Numerics())
    files, size, count = [], 0, 0
    for index in range(len(split)):
        if limit is not None and count >= limit:
            break
        ids = torch.from_numpy(split.file(index).astype("int64"))
        files.append(ids)
        size += int(split.sizes[index])
        count += len(ids)
    return tokens.bits_per_byte(nats(model, files, context), size)
