"""The content hash: the same model has the same hash, another model another one."""

from __future__ import annotations

import hashlib
import json

import pytest
import torch

from dslearn.checkpoint.hashing import config_text, target_hash
from dslearn.checkpoint.reader import Checkpoint
from dslearn.checkpoint.storage import quantise
from dslearn.checkpoint.writer import write
from dslearn.config import Config
from tests.support.files import save_single
from tests.support.random_model import random_dense, tiny_random_config

VISION = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32, "patch_size": 2}


def test_the_hash_is_the_documented_recipe(tmp_path, raw_config, stored):
    checkpoint = Checkpoint(save_single(tmp_path, raw_config, stored))
    digest = hashlib.sha256(config_text(checkpoint.config).encode())
    for name in sorted(stored):
        spec, data = checkpoint.spec(name), stored[name].contiguous().view(torch.uint8)
        digest.update(f"\n{name} {spec.dtype} {list(spec.shape)}\n".encode())
        digest.update(data.numpy().tobytes())
    assert target_hash(checkpoint) == digest.hexdigest() == target_hash(tmp_path)


def test_cutting_the_files_differently_keeps_it(tmp_path, raw_config, stored):
    write(tmp_path / "a", raw_config, stored, max_shard_bytes=300_000)
    nested = {"model_type": "deepseek_v41", "text_config": raw_config}
    nested["quantization_config"] = raw_config["quantization_config"]
    write(tmp_path / "b", nested, stored)
    assert target_hash(tmp_path / "a") == target_hash(tmp_path / "b")


def test_adding_drafts_and_vision_keeps_it(tmp_path, raw_config, stored):
    before = target_hash(save_single(tmp_path / "before", raw_config, stored))
    raw = tiny_random_config(
        num_nextn_predict_layers=2,
        compress_ratios=[*raw_config["compress_ratios"], 0, 0],
        vision_config={**VISION, "downsample_ratio": 2},
        dspark_block_size=7,
    )
    cfg = Config.from_dict(raw)
    whole = quantise(cfg, random_dense(cfg, seed=1))
    assert len(whole) > len(stored) + 100
    assert target_hash(save_single(tmp_path / "after", raw, whole)) == before


@pytest.mark.parametrize("name", ["norm.weight", "layers.5.ffn.experts.5.w2.scale"])
def test_one_changed_bit_changes_it(tmp_path, raw_config, stored, name):
    before = target_hash(save_single(tmp_path / "before", raw_config, stored))
    changed = dict(stored)
    changed[name] = changed[name].clone()
    changed[name].view(torch.uint8).view(-1)[0] ^= 1
    assert target_hash(save_single(tmp_path / "after", raw_config, changed)) != before


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sliding_window", 9),
        ("rms_norm_eps", 1e-6),
        ("index_topk", 5),
        ("gate_temp", 2.0),
        ("rope_scaling", None),
        ("engram_pad_token_id", 3),
    ],
)
def test_config_fields_that_change_logits_change_it(raw_config, name, value):
    before = config_text(Config.from_dict(raw_config))
    assert config_text(Config.from_dict({**raw_config, name: value})) != before


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("eos_token_id", 7),
        ("max_position_embeddings", 4096),
        ("image_token_id", None),
        ("gate_temp", 1),  # the default, written out
        ("swiglu_limit", 2),  # 2 and 2.0 are one setting
        ("unknown_field", "x"),
    ],
)
def test_config_fields_that_do_not_keep_it(raw_config, name, value):
    before = config_text(Config.from_dict(raw_config))
    assert config_text(Config.from_dict({**raw_config, name: value})) == before
    assert json.loads(before)["ratios"] == raw_config["compress_ratios"]
