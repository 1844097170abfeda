"""The inventory against the published totals of DeepSeek-V4.1-Flash."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from pathlib import Path

import pytest

from dslearn.checkpoint.inventory import inventory, scale_name, stored
from dslearn.checkpoint.names import Entry, entries, part_of
from dslearn.config import Config
from dslearn.errors import CheckpointError
from tests.support.random_model import tiny_random_config

RELEASED = Path(__file__).parents[1] / "data" / "v4_1_flash_config.json"

# Bytes per line of the budget, from an accounting of the 48 released shard headers.
BUDGET = {
    "routed experts": 288_777_830_400,
    "Engram tables": 202_758_032_400,
    "DSpark": 7_932_874_632,
    "attention": 5_069_721_600,
    "shared experts": 1_416_960_000,
    "embed": 1_323_827_200,
    "head": 1_323_827_200,
    "vision": 970_536_960,
    "Engram projections": 315_043_840,
    "gates": 157_409_280,
    "mHC": 157_295_040,
    "indexers": 45_130_752,
    "compressors": 36_704_256,
    "layer norms": 819_200,
    "final norm": 10_240,
}


@pytest.fixture(scope="module")
def released():
    return inventory(Config.from_file(RELEASED))


def test_the_released_checkpoint_has_96085_tensors_and_510286023000_bytes(released):
    assert len(released) == 96_085
    assert sum(spec.nbytes for spec in released.values()) == 510_286_023_000


def test_the_byte_budget_line_by_line(released):
    found = Counter()
    for spec in released.values():
        found[spec.group] += spec.nbytes
    assert dict(found) == BUDGET


def test_tensor_counts_by_part(released):
    parts = Counter(part_of(name) for name in released)
    assert parts == {"target": 93_418, "draft": 2_401, "vision": 266}
    groups = Counter(spec.group for spec in released.values())
    assert groups["routed experts"] == 40 * 384 * 6
    assert (groups["compressors"], groups["indexers"]) == (11, 32)
    assert groups["Engram tables"] + groups["Engram projections"] == 12


# Rows of the published table, one of each kind.
@pytest.mark.parametrize(
    ("name", "dtype", "shape"),
    [
        ("embed.weight", "BF16", (129280, 5120)),
        ("head.weight", "BF16", (129280, 5120)),
        ("layers.0.hc_attn_fn", "F32", (24, 20480)),
        ("layers.39.hc_ffn_scale", "F32", (3,)),
        ("layers.5.attn.wq_b.weight", "F8_E4M3", (32768, 1280)),
        ("layers.5.attn.wq_b.scale", "F8_E8M0", (1024, 40)),
        ("layers.5.attn.wo_a.weight", "F8_E4M3", (8192, 4096)),
        ("layers.5.attn.attn_sink", "F32", (64,)),
        ("layers.14.attn.compressor.wgate.weight", "BF16", (512, 5120)),
        ("layers.20.attn.compressor.wkv.weight", "BF16", (512, 5120)),
        ("layers.36.attn.indexer.wq_b.weight", "F8_E4M3", (4096, 1280)),
        ("layers.20.attn.indexer.wk.weight", "BF16", (128, 512)),
        ("layers.24.attn.indexer.weights_proj.weight", "BF16", (32, 5120)),
        ("layers.7.ffn.gate.bias_vl", "F32", (384,)),
        ("layers.7.ffn.experts.383.w1.weight", "I8", (2304, 2560)),
        ("layers.7.ffn.experts.383.w1.scale", "F8_E8M0", (2304, 160)),
        ("layers.7.ffn.experts.0.w2.weight", "I8", (5120, 1152)),
        ("layers.7.ffn.experts.0.w2.scale", "F8_E8M0", (5120, 72)),
        ("layers.7.ffn.shared_experts.w3.weight", "F8_E4M3", (2304, 5120)),
        ("layers.1.engram.embed.weight", "F8_E4M3", (384006168, 256)),
        ("layers.14.engram.embed.scale", "F8_E8M0", (384016682, 8)),
        ("layers.14.engram.wkv.scale", "F8_E8M0", (800, 192)),
        ("layers.1.engram.q_weight", "BF16", (4, 5120)),
        ("mtp.0.main_proj.weight", "F8_E4M3", (5120, 15360)),
        ("mtp.1.ffn.gate.bias_vl", "F32", (128,)),
        ("mtp.2.confidence_head.proj.weight", "BF16", (1, 5376)),
        ("mtp.2.markov_head.embed.weight", "BF16", (129280, 256)),
        ("vision.patch_embed.proj.weight", "BF16", (1024, 588)),
        ("vision.blocks.31.mlp.w1.weight", "BF16", (5632, 1024)),
        ("aligner.w1.weight", "BF16", (5120, 9216)),
        ("image_newline", "BF16", (5120,)),
    ],
)
def test_published_rows(released, name, dtype, shape):
    assert (released[name].dtype, released[name].shape) == (dtype, shape)


@pytest.mark.parametrize(
    "name",
    [
        "layers.20.attn.compressor.wgate.weight",  # ratio 1 pools nothing
        "layers.24.attn.indexer.wk.weight",  # reads layer 20's keys
        "layers.3.attn.indexer.wq_b.weight",  # reuses layer 2's selection
        "mtp.0.attn.compressor.wkv.weight",
        "mtp.1.main_proj.weight",
        "mtp.1.norm.weight",
        "layers.0.engram.q_weight",
        "hc_head_fn",
    ],
)
def test_tensors_that_only_other_layers_or_models_have(released, name):
    assert name not in released


def test_names_do_not_depend_on_the_storage():
    quantised = Config.from_dict(tiny_random_config())
    plain = dataclasses.replace(quantised, quantization=None)
    with_scales = inventory(quantised)
    assert set(inventory(plain)) == {n for n in with_scales if not n.endswith(".scale")}
    assert {s.dtype for s in inventory(plain).values()} == {"BF16", "F32"}
    weights = [n for n, e in entries(quantised).items() if e.kind != "plain"]
    assert {scale_name(n) for n in weights} == {n for n in with_scales if n.endswith(".scale")}


def test_odd_sizes_get_whole_tiles_at_the_edges():
    raw = tiny_random_config(hidden_size=96, moe_intermediate_size=160, q_lora_rank=48)
    specs = inventory(Config.from_dict(raw))
    assert specs["layers.0.attn.wq_b.weight"].shape == (256, 48)
    assert specs["layers.0.attn.wq_b.scale"].shape == (8, 2)
    assert specs["layers.0.ffn.experts.0.w1.weight"].shape == (160, 48)
    assert specs["layers.0.ffn.experts.0.w1.scale"].shape == (160, 3)
    big = inventory(
        Config.from_dict(
            {**raw, "quantization_config": {"weight_block_size": [128, 128], "expert_dtype": "fp8"}}
        )
    )
    assert big["layers.0.attn.wq_b.scale"].shape == (2, 1)
    assert big["layers.0.ffn.experts.0.w2.weight"].shape == (96, 160)
    assert big["layers.0.ffn.experts.0.w2.scale"].shape == (1, 2)
    assert big["layers.1.engram.embed.scale"].shape[1] == 2  # rows keep one scale per 32


def test_widths_that_32_does_not_divide_are_refused_for_row_scales():
    cfg = Config.from_dict(tiny_random_config(moe_intermediate_size=48))
    with pytest.raises(CheckpointError, match="48 columns.*multiple of 32"):
        inventory(cfg)
    entry = Entry((4, 48), "Engram tables", "rows")
    with pytest.raises(CheckpointError, match="multiple of 32"):
        stored(cfg, "layers.1.engram.embed.weight", entry, "F8_E4M3")
    assert stored(cfg, "x.weight", entry, "BF16")["x.weight"].nbytes == 4 * 48 * 2


def test_a_vision_config_without_sizes_is_refused():
    cfg = Config.from_dict(tiny_random_config(vision_config={"num_hidden_layers": 2}))
    with pytest.raises(CheckpointError, match="lacks hidden_size"):
        inventory(cfg)
    off = Config.from_dict(tiny_random_config(vision_config={"num_hidden_layers": 0}))
    assert not any(part_of(name) == "vision" for name in inventory(off))


def test_one_draft_stage_is_first_and_last():
    names = set(inventory(Config.from_dict(tiny_random_config(num_nextn_predict_layers=1))))
    assert {"mtp.0.main_proj.weight", "mtp.0.norm.weight", "mtp.0.markov_head.head.weight"} <= names


def test_bytes_are_those_of_the_shape(released):
    spec = released["layers.1.engram.wkv.weight"]
    assert spec.nbytes == math.prod((25600, 6144))
