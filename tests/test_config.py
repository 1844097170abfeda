"""The released config, flat and nested; one refusal for every rule."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from dslearn.config import Config
from dslearn.errors import ConfigError
from tests.support.random_model import tiny_random_config

RELEASED = Path(__file__).parent / "data" / "v4_1_flash_config.json"


def released() -> dict[str, Any]:
    return json.loads(RELEASED.read_text())


def test_the_released_config_has_the_published_schedule():
    cfg = Config.from_file(RELEASED)
    assert (cfg.num_attention_heads, cfg.head_dim, cfg.rms_norm_eps) == (64, 512, 1e-20)
    assert cfg.roles.count("local") == 2
    assert [i for i, r in enumerate(cfg.roles) if r.startswith("full")] == [2, 8, 14, 20]
    assert cfg.roles[20] == "full+candidate"
    assert [i for i, r in enumerate(cfg.roles) if r == "reindex"] == [24, 28, 32, 36]
    assert [cfg.kv_source(i) for i in (0, 2, 7, 8, 19, 20, 39)] == [None, 2, 2, 8, 14, 20, 20]
    assert [cfg.index_source(i) for i in (1, 13, 23, 24, 39)] == [None, 8, 20, 24, 36]
    assert [i for i in range(40) if cfg.uses_candidates(i)] == [24, 28, 32, 36]
    assert cfg.ratios == (0, 0) + (2,) * 18 + (1,) * 20
    assert cfg.engram_columns == 24
    assert cfg.quantization is not None and cfg.quantization.weight_block_size == 32
    assert cfg.rope_scaling is not None and cfg.rope_scaling.factor == 16


def test_flat_and_nested_configs_are_equal():
    nested = released()
    flat = {**nested, **nested["text_config"], "model_type": "deepseek_v41"}
    del flat["text_config"]
    assert Config.from_dict(flat) == Config.from_dict(nested)


def test_a_directory_and_its_config_json_are_equal(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(tiny_random_config()))
    assert Config.from_file(tmp_path) == Config.from_file(tmp_path / "config.json")


def test_optional_fields_may_be_absent_or_null():
    raw = tiny_random_config(
        quantization_config=None, rope_scaling=None, candidate_source_layer_id=None
    )
    for name in list(raw):
        if name.startswith("dspark") or name in ("norm_topk_prob", "num_key_value_heads"):
            del raw[name]
    cfg = Config.from_dict(raw)
    assert cfg.quantization is None
    assert cfg.rope_scaling is None
    assert cfg.roles[4] == "full"
    assert not any(cfg.uses_candidates(i) for i in range(8))


def test_rope_scaling_default_means_none():
    cfg = Config.from_dict(tiny_random_config(rope_scaling={"rope_type": "default"}))
    assert cfg.rope_scaling is None


def test_compress_ratios_may_cover_the_drafts():
    plain = tiny_random_config(num_nextn_predict_layers=2)
    longer = tiny_random_config(
        num_nextn_predict_layers=2, compress_ratios=[*plain["compress_ratios"], 0, 0]
    )
    assert Config.from_dict(plain).ratios == Config.from_dict(longer).ratios


@pytest.mark.parametrize("alias", ["dspark_per_tok", "dspark_n_activated_experts"])
def test_draft_experts_per_token_under_other_names(alias):
    raw = tiny_random_config()
    raw[alias] = raw.pop("dspark_num_experts_per_tok")
    assert Config.from_dict(raw).dspark_num_experts_per_tok == 2


REFUSED: list[tuple[str, Any, str]] = [
    # settings with one implemented value
    ("hidden_act", "gelu", "clamped SwiGLU"),
    ("attention_bias", True, "bias"),
    ("tie_word_embeddings", True, "separate tables"),
    ("scoring_func", "sigmoid", "sqrt"),
    ("topk_method", "greedy", "router bias"),
    ("num_key_value_heads", 4, "shared vector"),
    ("n_shared_experts", 2, "one shared expert"),
    ("model_type", "deepseek_v4", "deepseek_v41"),
    ("model_type", "llama", "deepseek_v41"),
    # quantisation
    ("quantization_config", {"quant_method": "awq"}, "quant_method"),
    ("quantization_config", {"scale_fmt": "float"}, "scale_fmt"),
    ("quantization_config", {"activation_scheme": "static"}, "dynamic"),
    ("quantization_config", {"weight_block_size": [64, 64]}, "weight_block_size"),
    ("quantization_config", {"weight_block_size": 32}, "weight_block_size"),
    ("quantization_config", {"weight_block_size": [32, 128]}, "weight_block_size"),
    ("quantization_config", {"expert_dtype": "int4"}, "expert_dtype"),
    # rope
    ("rope_scaling", {"type": "linear", "factor": 2}, "yarn"),
    ("rope_scaling", {"type": "yarn", "factor": 2}, "original_max_position_embeddings"),
    (
        "rope_scaling",
        {"factor": 0, "original_max_position_embeddings": 64},
        "rope_scaling.factor=0",
    ),
    ("qk_rope_head_dim", 15, "even"),
    ("qk_rope_head_dim", 128, "at most"),
    ("index_head_dim", 8, "qk_rope_head_dim=16"),
    # ratios and sources
    ("compress_ratios", [0, 4, 4, 4, 128, 1, 1, 1], r"\[4, 128\]"),
    ("compress_ratios", [0, 2], "2 entries"),
    ("compress_ratios", [0, 2, 2, 2, 2, 1, 1, 1], "must be equal"),
    ("compress_ratios", [1, 2, 2, 2, 1, 1, 1, 1], "needs a kv source"),
    ("compress_ratios", [0, 0, 2, 2, 1, 1, 1, 1], "ratio above 0"),
    ("kv_source_layer_ids", [1, 3, 9], "layers"),
    ("kv_source_layer_ids", [3, 1, 4], "ascend"),
    ("kv_source_layer_ids", [1, 2, 3, 4], "index sources too"),
    ("index_source_layer_ids", [1, 3, 3, 4], "ascend"),
    ("candidate_source_layer_id", 6, "kv_source_layer_ids"),
    ("candidate_topk_blocks", 0, "positive"),
    ("index_topk", 0, "positive"),
    # Engram, experts, drafts
    ("engram_layer_ids", [1, 8], "0..7"),
    ("engram_num_embeddings", [384], "one per Engram layer"),
    ("engram_max_ngram_size", 5, "2, 3 or 4"),
    ("num_experts_per_tok", 7, "n_routed_experts=6"),
    ("o_groups", 3, "divide"),
    # types
    ("hidden_size", "64", "whole number"),
    ("hidden_size", 64.0, "whole number"),
    ("hidden_size", True, "whole number"),
    ("hidden_size", -64, "positive"),
    ("rms_norm_eps", float("nan"), "finite"),
    ("rms_norm_eps", -1e-6, "negative"),
    ("norm_topk_prob", 1, "true or false"),
    ("compress_ratios", 2, "list"),
    ("kv_source_layer_ids", ["1"], "list of whole numbers"),
    ("text_config", [1], "JSON objects"),
]


@pytest.mark.parametrize(("name", "value", "said"), REFUSED, ids=lambda v: str(v)[:40])
def test_refused_values_name_the_field_and_the_rule(name, value, said):
    with pytest.raises(ConfigError, match=said) as caught:
        Config.from_dict({**tiny_random_config(), name: value})
    assert name.split("_layer")[0] in str(caught.value) or "layer" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dspark_markov_rank", 0),
        ("dspark_block_size", 0),
        ("dspark_target_layer_ids", []),
        ("dspark_target_layer_ids", [8]),
        ("dspark_num_experts_per_tok", 5),
        ("num_nextn_predict_layers", -1),
    ],
)
def test_draft_fields_are_checked_when_there_are_drafts(name, value):
    raw = tiny_random_config(**{"num_nextn_predict_layers": 1, name: value})
    with pytest.raises(ConfigError, match=name):
        Config.from_dict(raw)


def test_every_required_field_is_named_when_it_is_missing():
    required = [
        "vocab_size", "hidden_size", "num_hidden_layers", "moe_intermediate_size", "head_dim",
        "num_attention_heads", "qk_rope_head_dim", "q_lora_rank", "o_groups", "o_lora_rank",
        "n_routed_experts", "num_experts_per_tok", "routed_scaling_factor", "sliding_window",
        "rope_theta", "compress_rope_theta", "compress_ratios", "swiglu_limit", "rms_norm_eps",
        "hc_mult", "hc_sinkhorn_iters", "hc_eps", "max_position_embeddings",
    ]  # fmt: skip
    for name in required:
        raw = tiny_random_config()
        del raw[name]
        with pytest.raises(ConfigError, match=f"lacks {name}"):
            Config.from_dict(raw)
    with pytest.raises(ConfigError) as caught:
        Config.from_dict({"model_type": "deepseek_v41"})
    assert all(name in str(caught.value) for name in required)


def test_a_nested_model_type_counts_as_well():
    raw = copy.deepcopy(released())
    raw["model_type"] = "deepseek_v4"
    with pytest.raises(ConfigError, match="deepseek_v4'"):
        Config.from_dict(raw)


def test_files_that_are_not_a_config(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        Config.from_file(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="not JSON"):
        Config.from_file(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(ConfigError, match="JSON objects"):
        Config.from_file(tmp_path)
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not JSON"):
        Config.from_file(tmp_path)
