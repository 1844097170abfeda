"""Small random models for tests: a config that exercises every mechanism, and weights for it.

The sizes are the smallest at which nothing is degenerate: every layer role, both ratios, two
Engram layers with two scales per row, 16 index heads (fewer give exact ties), embeddings so small
that the norm eps matters, activations large enough that the SwiGLU clamp acts.
"""

from __future__ import annotations

import zlib
from copy import deepcopy
from typing import Any

import numpy as np
import torch

from dslearn.checkpoint.names import entries
from dslearn.config import Config

LINEAR_GAIN = 1.5


def primes_from(start: int, count: int, used: set[int]) -> list[int]:
    """The next `count` primes at or above `start` that are not in `used`; adds them to it."""
    found: list[int] = []
    candidate = start
    while len(found) < count:
        prime = candidate > 1 and all(candidate % d for d in range(2, int(candidate**0.5) + 1))
        if prime and candidate not in used:
            found.append(candidate)
            used.add(candidate)
        candidate += 1
    return found


def engram_primes(vocab: int, layers: int, sizes: int, heads: int) -> list[list[int]]:
    """Bucket sizes per Engram layer, n-gram size major and head minor; none is used twice."""
    used: set[int] = set()
    return [
        [p for _ in range(sizes) for p in primes_from(vocab, heads, used)] for _ in range(layers)
    ]


BASE: dict[str, Any] = {
    "model_type": "deepseek_v41",
    "vocab_size": 160,
    "hidden_size": 64,
    "num_hidden_layers": 8,
    "moe_intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 32,
    "o_groups": 2,
    "o_lora_rank": 32,
    "hidden_act": "silu",
    "swiglu_limit": 2.0,
    "rms_norm_eps": 1e-20,
    "max_position_embeddings": 1024,
    "rope_theta": 10000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 16,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": 64,
    },
    "compress_rope_theta": 160000,
    "n_routed_experts": 6,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "sliding_window": 8,
    "compress_ratios": [0, 2, 2, 2, 1, 1, 1, 1],
    "kv_source_layer_ids": [1, 3, 4],
    "index_source_layer_ids": [1, 3, 4, 6],
    "index_n_heads": 16,
    "index_head_dim": 32,
    "index_topk": 4,
    "candidate_source_layer_id": 4,
    "candidate_topk_blocks": 2,
    "candidate_block_size": 4,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "num_nextn_predict_layers": 0,
    "engram_layer_ids": [1, 5],
    "engram_max_ngram_size": 4,
    "engram_vocab_size": 50,
    "engram_n_heads": 2,
    "engram_head_dim": 64,
    "engram_pad_token_id": 2,
    "engram_compressed_vocab_size": 150,
    "dspark_block_size": 5,
    "dspark_noise_token_id": 159,
    "dspark_target_layer_ids": [5, 6, 7],
    "dspark_markov_rank": 32,
    "dspark_n_routed_experts": 4,
    "dspark_num_experts_per_tok": 2,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "image_token_id": 158,
    "quantization_config": {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [32, 32],
        "scale_fmt": "ue8m0",
        "expert_dtype": "fp4",
    },
}


def tiny_random_config(**overrides: Any) -> dict[str, Any]:
    """A flat config.json as a dict, quantised storage; `quantization_config=None` makes it plain.

    `num_nextn_predict_layers=2` adds drafts, `vision_config={...}` the vision tensors. Engram row
    counts follow `engram_layer_ids`, `engram_vocab_size`, `engram_n_heads` unless given.
    """
    raw = {**deepcopy(BASE), **overrides}
    buckets = engram_primes(
        raw["engram_vocab_size"],
        len(raw["engram_layer_ids"]),
        raw["engram_max_ngram_size"] - 1,
        raw["engram_n_heads"],
    )
    raw.setdefault("engram_num_embeddings", [sum(layer) for layer in buckets])
    return raw


def token_map(config: dict[str, Any]) -> np.ndarray:
    """A compressed-id map, int32 [vocab]: some neighbours merged, numbered as first seen.

    Ids 0..2 stay apart, so the pad id 2 maps to 2. The number of distinct ids is
    `engram_compressed_vocab_size`.
    """
    vocab, distinct = config["vocab_size"], config["engram_compressed_vocab_size"]
    merged = vocab - distinct
    assert 0 <= merged <= (vocab - 4) // 2, f"cannot merge {merged} of {vocab} ids pairwise"
    fresh = np.ones(vocab, dtype=np.int64)
    fresh[5 : 5 + 2 * merged : 2] = 0
    return (np.cumsum(fresh) - 1).astype(np.int32)


def random_dense(cfg: Config, seed: int = 0) -> dict[str, torch.Tensor]:
    """Every logical weight of `cfg` as an fp32 tensor of its matrix shape, from NumPy's generator.

    A tensor depends on `seed`, its own name and its shape only: adding drafts changes nothing else.
    """
    weights = {}
    for name, entry in entries(cfg).items():
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        array = _draw(name, entry.shape, rng).astype(np.float32)
        weights[name] = torch.from_numpy(np.ascontiguousarray(array))
    return weights


def _draw(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    normal = rng.standard_normal(shape)
    if "norm" in name or name.endswith(("q_weight", "k_weight")):
        return 1 + 0.2 * normal
    if "engram.embed" in name:
        blocks = 2.0 ** rng.integers(-4, 3, size=(shape[0], -(-shape[1] // 32)))
        return normal * np.repeat(blocks, 32, axis=1)[:, : shape[1]]
    if name == "embed.weight":
        normal[::7] *= 1e-5
        return normal
    if name.endswith("_fn"):
        return normal * 0.8 / shape[1] ** 0.5
    if name.endswith("hc_attn_scale") or name.endswith("hc_ffn_scale"):
        return 1 + 0.2 * normal
    if name.endswith(("_base", "attn_sink", "gate.bias_vl")):
        return 0.5 * normal
    if len(shape) == 1:
        return 0.1 * normal
    gain = 2 * LINEAR_GAIN if name == "head.weight" else LINEAR_GAIN
    return normal * gain / shape[1] ** 0.5
