"""The rules a `Config` must obey; each violation names the field, the value and the rule."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from dslearn.errors import ConfigError

if TYPE_CHECKING:
    from dslearn.config import Config


# fields without a meaning at zero or below
_POSITIVE = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "moe_intermediate_size",
    "num_attention_heads",
    "head_dim",
    "q_lora_rank",
    "o_groups",
    "o_lora_rank",
    "n_routed_experts",
    "num_experts_per_tok",
    "sliding_window",
    "hc_mult",
    "hc_sinkhorn_iters",
    "max_position_embeddings",
    "rope_theta",
    "compress_rope_theta",
    "swiglu_limit",
    "gate_temp",
)


def check(cfg: Config) -> None:
    """Raise ConfigError on the first rule `cfg` breaks."""
    _types(cfg)
    _positive(cfg)
    _attention(cfg)
    _sources(cfg)
    _engram(cfg)
    _experts(cfg)
    _drafts(cfg)


def _need(ok: bool, what: str, rule: str) -> None:
    if not ok:
        raise ConfigError(f"{what}: {rule}")


def _types(cfg: Config) -> None:
    def whole(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool)

    rules = {
        "int": (whole, "must be a whole number"),
        "int | None": (lambda v: v is None or whole(v), "must be a whole number or null"),
        "float": (lambda v: whole(v) or _finite(v), "must be a finite number"),
        "bool": (lambda v: isinstance(v, bool), "must be true or false"),
        "tuple[int, ...]": (
            lambda v: isinstance(v, tuple) and all(map(whole, v)),
            "must be a list of whole numbers",
        ),
    }
    for item in fields(cfg):
        if item.type in rules:
            good, rule = rules[item.type]
            value = getattr(cfg, item.name)
            _need(good(value), f"{item.name}={value!r}", rule)
    if cfg.rope_scaling is not None:
        for item in fields(cfg.rope_scaling):
            value = getattr(cfg.rope_scaling, item.name)
            ok = (whole(value) or _finite(value)) and value > 0
            _need(ok, f"rope_scaling.{item.name}={value!r}", "must be a positive number")


def _finite(value: Any) -> bool:
    return isinstance(value, float) and math.isfinite(value)


def _positive(cfg: Config) -> None:
    for name in _POSITIVE:
        value = getattr(cfg, name)
        _need(value > 0, f"{name}={value}", "must be positive")
    for name in ("rms_norm_eps", "hc_eps", "num_nextn_predict_layers"):
        value = getattr(cfg, name)
        _need(value >= 0, f"{name}={value}", "must not be negative")


def _attention(cfg: Config) -> None:
    rope, dim, heads = cfg.qk_rope_head_dim, cfg.head_dim, cfg.num_attention_heads
    _need(
        0 < rope <= dim and rope % 2 == 0,
        f"qk_rope_head_dim={rope}",
        f"rotated pairs are the last dims of a head: even and at most head_dim={dim}",
    )
    _need(
        heads % cfg.o_groups == 0,
        f"o_groups={cfg.o_groups}",
        f"must divide num_attention_heads={heads}: the output projection is grouped by heads",
    )
    layers, drafts = cfg.num_hidden_layers, cfg.num_nextn_predict_layers
    _need(
        len(cfg.compress_ratios) in (layers, layers + drafts),
        f"compress_ratios has {len(cfg.compress_ratios)} entries",
        f"one per layer ({layers}) or one per layer and draft stage ({layers + drafts})",
    )
    bad = sorted(set(cfg.compress_ratios) - {0, 1, 2})
    _need(not bad, f"compress_ratios holds {bad}", "V4.1 has ratios 0, 1 and 2")


def _sources(cfg: Config) -> None:
    ratios = cfg.ratios
    for name in ("kv_source_layer_ids", "index_source_layer_ids"):
        ids = getattr(cfg, name)
        _need(list(ids) == sorted(set(ids)), f"{name}={ids}", "must ascend without repeats")
        wrong = [i for i in ids if not 0 <= i < len(ratios) or ratios[i] == 0]
        _need(not wrong, f"{name} names layers {wrong}", "a source is a layer with a ratio above 0")
    lost = sorted(set(cfg.kv_source_layer_ids) - set(cfg.index_source_layer_ids))
    _need(
        not lost, f"kv source layers {lost}", "must be index sources too: they own the index keys"
    )
    for layer, ratio in enumerate(ratios):
        if ratio == 0:
            continue
        sources = [s for s in cfg.kv_source_layer_ids if s <= layer]
        _need(bool(sources), f"layer {layer} has ratio {ratio}", "needs a kv source at or below it")
        _need(
            ratios[sources[-1]] == ratio,
            f"layer {layer} has ratio {ratio}",
            f"its kv source {sources[-1]} has ratio {ratios[sources[-1]]}; they must be equal",
        )
    candidate = cfg.candidate_source_layer_id
    if candidate is not None:
        _need(
            candidate in cfg.kv_source_layer_ids,
            f"candidate_source_layer_id={candidate}",
            f"must be one of kv_source_layer_ids={cfg.kv_source_layer_ids}",
        )
        for name in ("candidate_topk_blocks", "candidate_block_size"):
            _need(getattr(cfg, name) > 0, f"{name}={getattr(cfg, name)}", "must be positive")
    if cfg.index_source_layer_ids:
        for name in ("index_n_heads", "index_head_dim", "index_topk"):
            _need(getattr(cfg, name) > 0, f"{name}={getattr(cfg, name)}", "must be positive")
        _need(
            cfg.qk_rope_head_dim <= cfg.index_head_dim,
            f"index_head_dim={cfg.index_head_dim}",
            f"must hold the qk_rope_head_dim={cfg.qk_rope_head_dim} rotated dims",
        )


def _engram(cfg: Config) -> None:
    ids, rows = cfg.engram_layer_ids, cfg.engram_num_embeddings
    wrong = [i for i in ids if not 0 <= i < cfg.num_hidden_layers]
    _need(
        not wrong, f"engram_layer_ids names {wrong}", f"layers are 0..{cfg.num_hidden_layers - 1}"
    )
    _need(
        len(rows) == len(ids),
        f"engram_num_embeddings has {len(rows)} entries",
        f"one per Engram layer ({len(ids)})",
    )
    if ids:
        for name in ("engram_vocab_size", "engram_n_heads", "engram_head_dim"):
            _need(getattr(cfg, name) > 0, f"{name}={getattr(cfg, name)}", "must be positive")
        size = cfg.engram_max_ngram_size
        _need(2 <= size <= 4, f"engram_max_ngram_size={size}", "must be 2, 3 or 4")


def _experts(cfg: Config) -> None:
    _need(
        cfg.num_experts_per_tok <= cfg.n_routed_experts,
        f"num_experts_per_tok={cfg.num_experts_per_tok}",
        f"at most n_routed_experts={cfg.n_routed_experts}",
    )


def _drafts(cfg: Config) -> None:
    if not cfg.num_nextn_predict_layers:
        return
    for name in ("dspark_block_size", "dspark_markov_rank"):
        _need(getattr(cfg, name) > 0, f"{name}={getattr(cfg, name)}", "must be positive")
    targets = cfg.dspark_target_layer_ids
    wrong = [i for i in targets if not 0 <= i < cfg.num_hidden_layers]
    _need(
        bool(targets) and not wrong,
        f"dspark_target_layer_ids={targets}",
        f"names the captured layers, out of 0..{cfg.num_hidden_layers - 1}",
    )
    experts = cfg.dspark_n_routed_experts or cfg.n_routed_experts
    _need(
        cfg.dspark_num_experts_per_tok <= experts,
        f"dspark_num_experts_per_tok={cfg.dspark_num_experts_per_tok}",
        f"at most the draft stages' {experts} experts",
    )
