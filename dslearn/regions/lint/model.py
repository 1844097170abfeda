"""The layers of a model, linted as they decode: one of each role."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dslearn.config import Config
from dslearn.model import chip
from dslearn.model.loading import load_model
from dslearn.regions.lint.run import Levels, Report, lint

PROMPT = 40  # tokens before the step that is linted: past the window and the selection of tiny


def role(cfg: Config, layer: int) -> str:
    """What a layer does that others do not, in words."""
    parts = {
        "window only": not cfg.ratios[layer],
        "owns entries": layer in cfg.kv_source_layer_ids,
        "selects": layer in cfg.index_source_layer_ids,
        "publishes candidates": layer == cfg.candidate_source_layer_id,
        "filters by candidates": cfg.uses_candidates(layer),
        "Engram": layer in cfg.engram_layer_ids,
    }
    said = [words for words, so in parts.items() if so]
    return f"ratio {cfg.ratios[layer]}, {', '.join(said) or 'reuses a selection'}"


def lint_model(directory: str | Path, levels: Levels | None = None) -> dict[str, Report]:
    """Lint one decode layer of each role: two sequences, one token each; -> role: report.

    Engram tables count as host memory: that is where a released model keeps them.
    """
    model = load_model(directory).requires_grad_(False)
    chip.prepare(model)
    wanted: dict[str, int] = {}
    for layer in range(model.cfg.num_hidden_layers):
        wanted.setdefault(role(model.cfg, layer), layer)
    reports: dict[str, Report] = {}
    vocabulary = model.cfg.vocab_size
    state = model.new_state(batch=2, max_len=PROMPT + 1)
    model.forward(torch.arange(2 * PROMPT).view(2, -1) % vocabulary, state)
    hooks = []
    for words, layer in wanted.items():

        def hook(module: nn.Module, args: tuple[Any, ...], title: str = words) -> None:
            reports[title] = lint(module.forward, *args, levels=levels, host=_tables(module))

        hooks.append(model.layers[layer].register_forward_pre_hook(hook))
    model.forward(torch.zeros(2, 1, dtype=torch.int64), state)
    for handle in hooks:
        handle.remove()
    return reports


def _tables(layer: nn.Module) -> Iterator[Tensor]:
    """The embedding tables of a layer."""
    for name, tensor in (*layer.named_parameters(), *layer.named_buffers()):
        if ".embed." in f".{name}":
            yield tensor
