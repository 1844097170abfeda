"""Plain checkpoints, and plain ones with quantised parts: what is stored decides."""

from __future__ import annotations

import pytest
import torch

from dslearn.checkpoint.reader import Checkpoint
from dslearn.checkpoint.storage import quantise
from dslearn.config import Config
from dslearn.errors import CheckpointError
from tests.support.files import save_single
from tests.support.random_model import random_dense, tiny_random_config


def expect_refusal(directory, match):
    with pytest.raises(CheckpointError, match=match) as caught:
        Checkpoint(directory)
    return str(caught.value)


def plain(dtype, **overrides):
    raw = tiny_random_config(quantization_config=None, **overrides)
    cfg = Config.from_dict(raw)
    weights = random_dense(cfg, seed=2)
    return raw, cfg, weights, {name: w.to(dtype) for name, w in weights.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_plain_checkpoints_load(tmp_path, dtype):
    raw, _, weights, tensors = plain(dtype)
    checkpoint = Checkpoint(save_single(tmp_path, raw, tensors))
    assert not any(checkpoint.is_quantised(name) for name in checkpoint.names)
    for name, weight in weights.items():
        assert torch.equal(checkpoint.dense(name), weight.to(dtype).float()), name


def test_plain_checkpoints_of_odd_sizes_load(tmp_path):
    raw, _, _, tensors = plain(
        torch.float32, hidden_size=72, moe_intermediate_size=40, q_lora_rank=20, engram_head_dim=24
    )
    assert len(Checkpoint(save_single(tmp_path, raw, tensors)).names) == len(tensors)


@pytest.mark.parametrize("config", ["none", "given"])
def test_bf16_linears_beside_fp8_engram_tables(tmp_path, config):
    raw, cfg, weights, _ = plain(torch.bfloat16)
    rule = {"rows": "F8_E4M3"}
    tensors = quantise(cfg, weights, lambda name, entry: rule.get(entry.kind, entry.dtype))
    if config == "given":
        raw["quantization_config"] = {"quant_method": "fp8"}
    checkpoint = Checkpoint(save_single(tmp_path, raw, tensors))
    found = {name for name in checkpoint.names if checkpoint.is_quantised(name)}
    assert found == {f"layers.{i}.engram.embed.weight" for i in (1, 5)}
    table = checkpoint.dense("layers.5.engram.embed.weight")
    exact = weights["layers.5.engram.embed.weight"]
    assert (table - exact).abs().max() < exact.abs().max() / 16
    assert not torch.equal(table, exact)


def test_fp8_and_fp4_parts_of_a_plain_checkpoint(tmp_path):
    raw, cfg, weights, _ = plain(torch.bfloat16)

    def choose(name, entry):
        if entry.kind == "expert":
            return "I8" if ".experts.0." in name else "F8_E4M3"
        return "F8_E4M3" if name.endswith("wo_b.weight") else entry.dtype

    checkpoint = Checkpoint(save_single(tmp_path, raw, quantise(cfg, weights, choose)))
    assert checkpoint.spec("layers.0.ffn.experts.0.w1.weight").dtype == "I8"
    assert checkpoint.spec("layers.0.ffn.experts.1.w1.scale").shape == (3, 2)
    assert checkpoint.is_quantised("layers.0.attn.wo_b.weight")


def test_fp8_tables_without_their_scale_are_refused(tmp_path):
    raw, cfg, weights, _ = plain(torch.bfloat16)
    rule = {"rows": "F8_E4M3"}
    tensors = quantise(cfg, weights, lambda name, entry: rule.get(entry.kind, entry.dtype))
    del tensors["layers.1.engram.embed.scale"]
    text = expect_refusal(save_single(tmp_path, raw, tensors), "1 tensors missing")
    assert "layers.1.engram.embed.scale" in text


@pytest.mark.parametrize("stored_as", ["fp4", "fp8"])
def test_experts_in_the_other_format_are_refused(tmp_path, stored_as):
    raw = tiny_random_config()
    other = "fp8" if stored_as == "fp4" else "fp4"
    raw["quantization_config"]["expert_dtype"] = stored_as
    cfg = Config.from_dict(raw)
    tensors = quantise(cfg, random_dense(cfg))
    assert Checkpoint(save_single(tmp_path / "right", raw, tensors)).names
    raw["quantization_config"]["expert_dtype"] = other
    expect_refusal(save_single(tmp_path / "wrong", raw, tensors), "144 tensors of a wrong dtype")
