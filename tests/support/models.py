"""Random models in memory and on disk, their NumPy twins, and states compared byte by byte.

One seed gives one set of weights; model and twin are filled from the same tensors.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "golden"))
from numpy_model import NumpyModel

from dslearn.checkpoint.storage import quantise
from dslearn.config import Config
from dslearn.model import Model, State
from dslearn.model.engram_hash import EngramHash
from dslearn.model.weights import named_tensors
from dslearn.numerics import Numerics
from tests.support.files import save_single
from tests.support.random_model import random_dense, tiny_random_config, token_map

EXACT = Numerics(activations=False, caches=False)
INVARIANT = Numerics(activations=True, caches=True, row_invariant=True)


def small_config(**overrides: Any) -> dict[str, Any]:
    """Five layers of every role, small enough for hundreds of forward calls; plain storage.

    Window 8, top-k 4 of at most 6 candidates, three streams, so that 12 tokens pass each bound.
    """
    sizes: dict[str, Any] = {
        "vocab_size": 64,
        "hidden_size": 32,
        "num_hidden_layers": 5,
        "moe_intermediate_size": 32,
        "num_attention_heads": 2,
        "head_dim": 32,
        "qk_rope_head_dim": 8,
        "o_lora_rank": 16,
        "n_routed_experts": 4,
        "compress_ratios": [0, 2, 2, 1, 1],
        "kv_source_layer_ids": [1, 3],
        "index_source_layer_ids": [1, 3, 4],
        "candidate_source_layer_id": 3,
        "candidate_topk_blocks": 3,
        "candidate_block_size": 2,
        "hc_mult": 3,
        "engram_layer_ids": [1, 4],
        "engram_vocab_size": 11,
        "engram_n_heads": 1,
        "engram_head_dim": 32,
        "engram_compressed_vocab_size": 60,
        "image_token_id": 62,
        "dspark_target_layer_ids": [2, 3, 4],
        "quantization_config": None,
    }
    return tiny_random_config(**(sizes | overrides))


@cache
def _weights(text: str, seed: int) -> dict[str, Tensor]:
    return random_dense(Config.from_dict(json.loads(text)), seed)


def weights(raw: dict[str, Any], seed: int = 0) -> dict[str, Tensor]:
    """The fp32 weights of a config, made once; treat them as read-only."""
    return _weights(json.dumps(raw, sort_keys=True), seed)


def build(
    raw: dict[str, Any],
    numerics: Numerics = EXACT,
    seed: int = 0,
    change: dict[str, Tensor] | None = None,
) -> Model:
    """A model with random weights, plain storage; `change` replaces tensors by name."""
    cfg = Config.from_dict(raw)
    hashing = None
    if cfg.engram_layer_ids:
        mapping = torch.from_numpy(token_map(raw)).long()
        hashing = EngramHash(cfg, mapping, int(mapping[cfg.engram_pad_token_id]))
    model = Model(cfg, numerics, hashing)
    tensors = weights(raw, seed) | (change or {})
    with torch.no_grad():
        for name, parameter in named_tensors(model):
            parameter.copy_(tensors[name])
    return model.requires_grad_(False).eval()


def twin(raw: dict[str, Any], seed: int = 0, **options: Any) -> NumpyModel:
    """The NumPy model of the same weights; `options` are its numeric switches."""
    tensors = {name: value.numpy() for name, value in weights(raw, seed).items()}
    mapping = token_map(raw)
    pad = int(mapping[raw["engram_pad_token_id"]])
    return NumpyModel(raw, tensors, engram_token_map=mapping, engram_pad_id=pad, **options)


def prompt(raw: dict[str, Any], length: int, seed: int = 0) -> Tensor:
    """Token ids [1, length]."""
    ids = np.random.default_rng([seed, length]).integers(0, raw["vocab_size"], size=(1, length))
    return torch.from_numpy(ids)


def save(directory: Path, raw: dict[str, Any], storage: str, seed: int = 0) -> Path:
    """Write the random weights as a checkpoint directory with one safetensors file.

    storage: "plain" all fp32, "mixed" bf16 with fp8 Engram tables, "released" as the config says.
    """
    dtypes = {
        "plain": lambda name, entry: "F32",
        "mixed": lambda name, entry: "F8_E4M3" if entry.kind == "rows" else entry.dtype,
        "released": None,
    }
    cfg = Config.from_dict(raw)
    return save_single(directory, raw, quantise(cfg, weights(raw, seed), dtypes[storage]))


def tensors_of(thing: Any, path: str = "state") -> Iterator[tuple[str, Tensor]]:
    """Every tensor a state holds, by path. Private ones are left out: what a mark keeps aside."""
    if isinstance(thing, Tensor):
        yield path, thing
    elif isinstance(thing, list | tuple):
        for i, part in enumerate(thing):
            yield from tensors_of(part, f"{path}[{i}]")
    elif isinstance(thing, dict):
        for key, part in thing.items():
            yield from tensors_of(part, f"{path}[{key}]")
    elif is_dataclass(thing) or type(thing).__module__.startswith("dslearn.model"):
        for name, part in vars(thing).items():
            if not name.startswith("_"):
                yield from tensors_of(part, f"{path}.{name}")


def differences(
    a: State, b: State, *, row: int | None = None, tolerance: float = 0.0
) -> dict[str, float]:
    """Paths of the tensors in which two states differ, with the largest difference.

    `row` compares sequence `row` of `a` with the only one of `b`. Equal means equal bytes unless a
    tolerance is given (for caches of plain floats).
    """
    mine, other = dict(tensors_of(a)), dict(tensors_of(b))
    assert mine.keys() == other.keys(), mine.keys() ^ other.keys()
    assert sum("data" in path for path in mine) >= len(a.layers), "a ring for every layer"
    found = {}
    for path, x in mine.items():
        x = x if row is None else x[row : row + 1]
        y = other[path]
        assert x.shape == y.shape and x.dtype == y.dtype, f"{path}: {x.shape} {y.shape}"
        if x.numpy().tobytes() != y.numpy().tobytes():
            gap = torch.where(x == y, 0.0, (x - y).abs().float()).max().item()
            if not gap <= tolerance:
                found[path] = gap
    return found


def forced_blocks(
    model: Model, ids: Tensor, seen: list[dict[str, Any]], **options: Any
) -> list[dict[str, Any]]:
    """Run every block of `model` on the twin's streams: `seen` is the twin's trace.

    A quantiser that rounds one value the other way then disturbs one block and not all above it.
    Returns per layer what the block gave: streams, pre, and the model's own trace entries.
    """
    out: list[dict[str, Any]] = []
    hooks = []
    for i, layer in enumerate(model.layers):
        if i:
            given = [torch.from_numpy(seen[i - 1][name]) for name in ("streams", "pre")]
            hooks.append(layer.register_forward_pre_hook(_replace_first_two(given)))
        hooks.append(layer.register_forward_hook(lambda _, args, result: out.append(result)))
    trace: dict[str, Any] = {}
    model.forward(ids, trace=trace, **options)
    for hook in hooks:
        hook.remove()
    pairs = zip(trace["layers"], out, strict=True)
    return [
        entry | {"streams": h.view(-1, *h.shape[-2:]), "pre": pre.view(-1, pre.shape[-1])}
        for entry, (h, pre, _) in pairs
    ]


def _replace_first_two(given: list[Tensor]) -> Callable[..., tuple[Any, ...]]:
    """A forward pre-hook that puts streams and pre-mix in the place of a block's own."""

    def hook(_: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return *(x.view_as(arg) for x, arg in zip(given, args, strict=False)), *args[2:]

    return hook
