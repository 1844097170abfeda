"""The compiled parts of a model, linted as they decode: one block of each role."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from dslearn import backend
from dslearn.config import Config
from dslearn.model import chip
from dslearn.model.block import Block
from dslearn.model.loading import load_model
from dslearn.regions.lint.report import merged
from dslearn.regions.lint.run import Levels, Report, lint

HALVES = ("engram_half", "attention_half", "expert_half")
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
    """Lint what is compiled of a decode step: the halves of one block of each role, and the output.

    Two sequences, one token each, fixed counts, and operations as on the device. Engram tables
    count as host memory: that is where a released model keeps them. -> role: report.
    """
    model = load_model(directory).requires_grad_(False)
    model.fixed_counts = True
    wanted: dict[int, str] = {}
    for layer in range(model.cfg.num_hidden_layers):
        words = role(model.cfg, layer)
        if words not in wanted.values():
            wanted[layer] = words
    state = model.new_state(batch=2, max_len=PROMPT + 1)
    ids = torch.arange(2 * PROMPT + 2).view(2, -1) % model.cfg.vocab_size
    model.forward(ids[:, :PROMPT], state)
    calls = [_listen(cast(Block, model.layers[layer]), HALVES) for layer in wanted]
    calls.append(_listen(model, ("output",)))
    model.forward(ids[:, PROMPT:], state)
    reports: dict[str, Report] = {}
    with backend.use("sim"):
        chip.prepare(model)
        for words, heard in zip((*wanted.values(), "output"), calls, strict=True):
            parts = {
                name: lint(getattr(type(owner), name), owner, *args, levels=levels, host=tables)
                for name, (owner, args, tables) in heard.items()
            }
            reports[words] = merged(parts)
    return reports


Heard = dict[str, tuple[nn.Module, tuple[Any, ...], list[Tensor]]]


def _listen(owner: nn.Module, names: tuple[str, ...]) -> Heard:
    """What the next call of each method of `owner` is given, before anything is written."""
    heard: Heard = {}
    tables = list(_tables(owner))

    def listener(name: str) -> Callable[..., Any]:
        method = getattr(owner, name)

        def call(*args: Any) -> Any:
            own = tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, args)
            heard[name] = owner, own, tables
            delattr(owner, name)
            return method(*args)

        return call

    for name in names:
        object.__setattr__(owner, name, listener(name))
    return heard


def _tables(layer: nn.Module) -> Iterator[Tensor]:
    """The embedding tables of a layer."""
    for name, tensor in (*layer.named_parameters(), *layer.named_buffers()):
        if ".embed." in f".{name}":
            yield tensor
