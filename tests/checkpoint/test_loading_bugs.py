"""Loading bugs that other projects reported, one test each, named after the report."""

from __future__ import annotations

import pytest
import torch

from dslearn.checkpoint.reader import Checkpoint
from dslearn.checkpoint.storage import quantise
from dslearn.config import Config
from dslearn.errors import CheckpointError
from tests.support.files import save_single
from tests.support.random_model import random_dense, tiny_random_config


def sized(tile: int, **overrides):
    """A config whose linears are multiples of 128: a wrong tile size shows in no dimension."""
    raw = tiny_random_config(
        hidden_size=128,
        head_dim=128,
        q_lora_rank=128,
        o_lora_rank=128,
        moe_intermediate_size=128,
        num_hidden_layers=2,
        compress_ratios=[0, 2],
        kv_source_layer_ids=[1],
        index_source_layer_ids=[1],
        candidate_source_layer_id=None,
        engram_layer_ids=[1],
        **overrides,
    )
    raw["quantization_config"]["weight_block_size"] = [tile, tile]
    return raw


@pytest.mark.parametrize(("says", "holds"), [(32, 128), (128, 32)])
def test_v3_to_v41_tile_mixup_is_refused_by_shape(tmp_path, says, holds):
    """Scale grids of 128x128 read as 32x32, or the reverse, loaded as noise without an error."""
    raw = sized(holds)
    cfg = Config.from_dict(raw)
    tensors = quantise(cfg, random_dense(cfg))
    assert Checkpoint(save_single(tmp_path / "right", raw, tensors)).tile == holds
    with pytest.raises(
        CheckpointError, match="scale grids of a wrong tile or block size"
    ) as caught:
        Checkpoint(save_single(tmp_path / "wrong", sized(says), tensors))
    text = str(caught.value)
    assert f"weight_block_size {says}x{says}" in text
    assert f"(it is a grid of {holds}x{holds} tiles)" in text
    assert "layers.0.attn.wq_a.scale is" in text
    linears = sum(1 for n in tensors if n.endswith(".scale")) - 2 * 6 * 3 - 1  # experts, table
    assert f"{linears} scale grids" in text


def test_one_wrong_grid_among_right_ones_is_named(damaged):
    name = "layers.0.attn.wq_b.scale"  # weight [256, 32]

    def change(tensors):
        tensors[name] = tensors[name].view(torch.uint8)[:2].view(torch.float8_e8m0fnu)

    with pytest.raises(CheckpointError, match="1 scale grids") as caught:
        Checkpoint(damaged(change))
    assert f"{name} is [2, 1], must be [8, 1] (it is a grid of 128x128 tiles)" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "grid", "said"),
    [
        ("layers.0.ffn.experts.3.w1.scale", (3, 2), "a grid of 32x32 tiles"),
        ("layers.0.ffn.experts.3.w1.scale", (96, 4), "one scale per 16 columns of a row"),
        ("layers.0.ffn.shared_experts.w1.scale", (96, 2), "one scale per 32 columns of a row"),
        ("layers.1.engram.embed.scale", (12, 2), "a grid of 32x32 tiles"),
    ],
)
def test_scales_of_another_scheme_are_recognised(damaged, name, grid, said):
    """NVFP4 repacks, MX linears and tiled tables hold the right weights with other scales."""

    def change(tensors):
        tensors[name] = torch.full(grid, 127, dtype=torch.uint8).view(torch.float8_e8m0fnu)

    with pytest.raises(CheckpointError, match="1 scale grids") as caught:
        Checkpoint(damaged(change))
    assert said in str(caught.value)


def test_vllm_43892_a_quantised_weight_without_its_scale(damaged):
    """No scale is optional: taken as 1 it gives weights that are off by powers of two."""

    def drop(tensors):
        for name in [n for n in tensors if n.endswith("attn.wkv.scale")]:
            del tensors[name]

    with pytest.raises(CheckpointError, match="8 tensors missing: layers.0.attn.wkv.scale"):
        Checkpoint(damaged(drop))


@pytest.mark.parametrize(
    "old,new", [("layers.", "model.layers."), ("ffn.", "mlp."), ("", "model.")]
)
def test_loongforge_143_a_renamed_prefix_leaves_nothing_unused_or_missing(damaged, old, new):
    def rename(tensors):
        for name in list(tensors):
            tensors[name.replace(old, new, 1)] = tensors.pop(name)

    with pytest.raises(CheckpointError, match="tensors missing") as caught:
        Checkpoint(damaged(rename))
    assert "tensors unexpected" in str(caught.value)
    assert ("no 'model.' prefix" in str(caught.value)) == new.startswith("model.")


def test_spark_vllm_331_shared_expert_tensors_of_the_draft_are_not_lost(tmp_path):
    """Twelve of the draft's tensors were skipped by a name mapping, and acceptance fell to 26%."""
    raw = tiny_random_config(num_nextn_predict_layers=2)
    cfg = Config.from_dict(raw)
    tensors = quantise(cfg, random_dense(cfg))
    shared = [n for n in tensors if n.startswith("mtp.") and "shared_experts" in n]
    assert len(shared) == 12
    for name in shared:
        tensors[name.replace("shared_experts", "shared_expert")] = tensors.pop(name)
    with pytest.raises(CheckpointError, match="12 tensors missing: mtp.0.ffn.shared_experts") as e:
        Checkpoint(save_single(tmp_path, raw, tensors))
    assert "12 tensors unexpected" in str(e.value)


def test_scale_bytes_are_exponents_not_numbers(damaged, stored):
    """Bytes copied into a float tensor as integers multiplied the weights by about 120."""
    checkpoint = Checkpoint(damaged())
    name = "layers.0.attn.wo_b.weight"
    byte = int(stored["layers.0.attn.wo_b.scale"].view(torch.uint8)[0, 0])
    codes = stored[name][:32, :32].float()
    assert torch.equal(checkpoint.dense(name)[:32, :32], codes * 2.0 ** (byte - 127))


def test_paddle_727_scales_expand_along_their_own_rows(tmp_path):
    """A 128x128 grid expanded along the wrong dimension: [2, 3] tiles with distinct scales."""
    raw = sized(128, num_attention_heads=2)
    cfg = Config.from_dict(raw)
    tensors = quantise(cfg, random_dense(cfg))
    name, scale = "layers.1.engram.wkv.weight", "layers.1.engram.wkv.scale"
    grid = tensors[scale].shape
    assert grid == (5, 3)
    distinct = torch.arange(110, 125, dtype=torch.uint8).view(grid)
    tensors[scale] = distinct.view(torch.float8_e8m0fnu)
    dense = Checkpoint(save_single(tmp_path, raw, tensors)).dense(name)
    factors = torch.pow(2.0, distinct.float() - 127)
    wide = factors.repeat_interleave(128, 0).repeat_interleave(128, 1)
    assert torch.equal(dense, tensors[name].float() * wide)
