"""Random checkpoints under the released names, plain or in the released storage, for the twin.

They exercise every role: local, full at ratio 2 and 1, reuse, candidate source, reindex, two Engram
layers. Weights are scaled integers, so the bytes do not depend on a CPU. Sizes are odd on purpose.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import numpy_formats as formats
from numpy_engram import bucket_primes

F32 = np.float32
CONFIG = {
    "vocab_size": 61,
    "hidden_size": 96,
    "num_hidden_layers": 6,
    "compress_ratios": [0, 2, 2, 1, 1, 1],
    "kv_source_layer_ids": [1, 3],
    "index_source_layer_ids": [1, 3, 5],
    "candidate_source_layer_id": 3,
    "candidate_topk_blocks": 3,
    "candidate_block_size": 2,
    "num_attention_heads": 4,
    "head_dim": 64,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 64,
    "o_groups": 2,
    "o_lora_rank": 48,
    "sliding_window": 5,
    "index_n_heads": 16,
    "index_head_dim": 32,
    "index_topk": 4,
    "rope_theta": 10000,
    "compress_rope_theta": 160000,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 16,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": 65536,
    },
    "rms_norm_eps": 1e-20,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 64,
    "swiglu_limit": 2.0,
    "scoring_func": "sqrtsoftplus",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "hc_mult": 3,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "engram_layer_ids": [1, 4],
    "engram_max_ngram_size": 3,
    "engram_vocab_size": 23,
    "engram_n_heads": 2,
    "engram_head_dim": 32,
    "engram_compressed_vocab_size": 50,
    "engram_pad_token_id": 2,
}
CONFIG["engram_num_embeddings"] = [sum(map(sum, p)) for p in bucket_primes(2, 2, 2, 23)]
TOKEN_MAP = np.arange(61) % 50


def shapes(cfg: dict) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a text model, without scales."""
    d, v = cfg["hidden_size"], cfg["vocab_size"]
    out = {"embed.weight": (v, d), "head.weight": (v, d), "norm.weight": (d,)}
    for i in range(cfg["num_hidden_layers"]):
        layer = _attention(cfg, i) | _rest(cfg)
        out |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    columns = (cfg["engram_max_ngram_size"] - 1) * cfg["engram_n_heads"]
    streams = cfg["hc_mult"]
    for i, rows in zip(cfg["engram_layer_ids"], cfg["engram_num_embeddings"], strict=True):
        name, width = f"layers.{i}.engram", cfg["engram_head_dim"]
        out[f"{name}.embed.weight"] = (rows, width)
        out[f"{name}.wkv.weight"] = ((streams + 1) * d, columns * width)
        out |= {f"{name}.{w}_weight": (streams, d) for w in "qk"}
    return out


def _attention(cfg: dict, i: int) -> dict[str, tuple[int, ...]]:
    d, heads, dim, q = (
        cfg[k] for k in ("hidden_size", "num_attention_heads", "head_dim", "q_lora_rank")
    )
    rank = cfg["o_groups"] * cfg["o_lora_rank"]
    out = {
        "wq_a.weight": (q, d),
        "q_norm.weight": (q,),
        "wq_b.weight": (heads * dim, q),
        "wkv.weight": (dim, d),
        "kv_norm.weight": (dim,),
        "attn_sink": (heads,),
        "wo_a.weight": (rank, heads * dim // cfg["o_groups"]),
        "wo_b.weight": (d, rank),
    }
    index, index_heads = cfg["index_head_dim"], cfg["index_n_heads"]
    if i in cfg["kv_source_layer_ids"]:
        out |= {"compressor.wkv.weight": (dim, d), "compressor.norm.weight": (dim,)}
        out |= {"indexer.wk.weight": (index, dim), "indexer.k_norm.weight": (index,)}
        if cfg["compress_ratios"][i] > 1:
            out["compressor.wgate.weight"] = (dim, d)
    if i in cfg["index_source_layer_ids"]:
        out["indexer.wq_b.weight"] = (index_heads * index, q)
        out["indexer.weights_proj.weight"] = (index_heads, d)
    return {f"attn.{name}": shape for name, shape in out.items()}


def _rest(cfg: dict) -> dict[str, tuple[int, ...]]:
    d, s, inner, e = (
        cfg[k] for k in ("hidden_size", "hc_mult", "moe_intermediate_size", "n_routed_experts")
    )
    out = {"attn_norm.weight": (d,), "ffn_norm.weight": (d,), "ffn.gate.weight": (e, d)}
    out |= {"ffn.gate.bias": (e,), "ffn.gate.bias_vl": (e,)}
    for part in ("hc_attn", "hc_ffn"):
        mix = (2 + s) * s
        out |= {f"{part}_fn": (mix, s * d), f"{part}_base": (mix,), f"{part}_scale": (3,)}
    for name in ["shared_experts", *(f"experts.{j}" for j in range(e))]:
        out |= {f"ffn.{name}.w{n}.weight": (inner, d) for n in (1, 3)}
        out[f"ffn.{name}.w2.weight"] = (d, inner)
    return out


def plain_tensors(cfg: dict, seed: int = 0) -> dict[str, np.ndarray]:
    """Float32 tensors that bf16 holds exactly, so spread that no mechanism stays idle."""
    rng = np.random.default_rng(seed)
    out = {}
    for name, shape in shapes(cfg).items():
        grid = rng.integers(-64, 65, size=shape).astype(F32) / F32(64)
        if name.endswith("norm.weight"):
            grid = grid * F32(0.5) + F32(1)
        elif len(shape) == 2 and "engram.embed" not in name and not name.startswith("embed"):
            grid = grid * F32(2.0 ** -round(np.log2(shape[1]) / 2 - 0.5))
        if name.endswith("_base"):
            grid = grid * F32(4)  # unequal streams, so that every Sinkhorn round still moves
        out[name] = grid.astype(ml_dtypes.bfloat16).astype(F32)
    out["embed.weight"][::7] *= F32(2.0**-14)  # rows so small that a norm eps would show
    return out


def _fp4(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    codes, byte = formats.quantize_fp4_ue8m0(weight, 32)
    return (codes[:, ::2] | codes[:, 1::2] << 4).view(np.int8), byte.view(formats.E8M0)


def _fp8_tiles(weight: np.ndarray, tile: int) -> tuple[np.ndarray, np.ndarray]:
    rows, columns = (-(-n // tile) for n in weight.shape)
    padded = np.zeros((rows * tile, columns * tile), F32)
    padded[: weight.shape[0], : weight.shape[1]] = weight
    tiles = padded.reshape(rows, tile, columns, tile).transpose(0, 2, 1, 3)
    codes, byte = formats.quantize_fp8(tiles.reshape(rows, columns, -1), tile * tile)
    whole = codes.reshape(rows, columns, tile, tile).transpose(0, 2, 1, 3).reshape(padded.shape)
    return whole[: weight.shape[0], : weight.shape[1]], byte[..., 0].view(formats.E8M0)


def released_storage(tensors: dict[str, np.ndarray], tile: int = 32) -> dict[str, np.ndarray]:
    """The same model in fp8 tiles, fp4 experts, fp8 Engram rows, bf16 and float32."""
    fp8 = (".wq_a.weight", ".wq_b.weight", ".attn.wkv.weight", ".wo_a.weight", ".wo_b.weight")
    out: dict[str, np.ndarray] = {}
    for name, value in tensors.items():
        scale = name.replace(".weight", ".scale")
        if ".experts." in name:
            out[name], out[scale] = _fp4(value)
        elif name.endswith("engram.embed.weight"):
            codes, byte = formats.quantize_fp8(value, 32)
            out[name], out[scale] = codes, byte.view(formats.E8M0)
        elif name.endswith((*fp8, "engram.wkv.weight")) or "shared_experts" in name:
            out[name], out[scale] = _fp8_tiles(value, tile)
        elif "hc_" in name or name.endswith(("attn_sink", "gate.bias", "gate.bias_vl")):
            out[name] = value
        else:
            out[name] = value.astype(ml_dtypes.bfloat16)
    return out
