"""Dense matrices to stored tensors and back, against ml_dtypes' reading of the same bytes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from dslearn.checkpoint.inventory import inventory, scale_name
from dslearn.checkpoint.names import entries
from dslearn.checkpoint.storage import NAMES, dequantise, quantise
from dslearn.config import Config
from dslearn.errors import CheckpointError
from tests.support.random_model import random_dense, tiny_random_config

ml_dtypes = pytest.importorskip("ml_dtypes")


def as_numpy(tensor: torch.Tensor, dtype) -> np.ndarray:
    return tensor.view(torch.uint8).numpy().view(dtype).astype(np.float32)


def test_quantise_gives_exactly_the_inventory(raw_config, stored):
    specs = inventory(Config.from_dict(raw_config))
    assert list(stored) == list(specs)
    found = {name: (NAMES[t.dtype], tuple(t.shape)) for name, t in stored.items()}
    assert found == {name: (spec.dtype, spec.shape) for name, spec in specs.items()}


def test_fp8_tiles_mean_code_times_scale(stored):
    name = "layers.3.attn.indexer.wq_b.weight"
    scale = as_numpy(stored[scale_name(name)], ml_dtypes.float8_e8m0fnu)
    codes = as_numpy(stored[name], ml_dtypes.float8_e4m3fn)
    wide = np.repeat(np.repeat(scale, 32, 0), 32, 1)[: codes.shape[0], : codes.shape[1]]
    dense = dequantise("linear", stored[name], stored[scale_name(name)], 32)
    assert np.array_equal(dense.numpy(), codes * wide)


def test_fp4_experts_hold_the_even_column_in_the_low_nibble(stored):
    name = "layers.3.ffn.experts.2.w2.weight"
    packed = stored[name].view(torch.uint8).numpy()
    codes = np.stack([packed & 15, packed >> 4], -1).reshape(packed.shape[0], -1)
    values = codes.astype(np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    scale = as_numpy(stored[scale_name(name)], ml_dtypes.float8_e8m0fnu)
    dense = dequantise("expert", stored[name], stored[scale_name(name)], 32)
    assert np.array_equal(dense.numpy(), values * np.repeat(scale, 32, 1))


def test_engram_rows_have_a_scale_per_32_columns(stored):
    name = "layers.1.engram.embed.weight"
    codes = as_numpy(stored[name], ml_dtypes.float8_e4m3fn)
    scale = as_numpy(stored[scale_name(name)], ml_dtypes.float8_e8m0fnu)
    assert (scale[:, 0] != scale[:, 1]).any()
    dense = dequantise("rows", stored[name], stored[scale_name(name)], 32)
    assert np.array_equal(dense.numpy(), codes * np.repeat(scale, 32, 1))


@pytest.mark.parametrize("size", [1.0, 1e-6, 1e-20])
def test_small_engram_rows_keep_their_precision(size):
    """The activation floor of 1e-4 does not apply to stored rows."""
    cfg = Config.from_dict(tiny_random_config())
    name = "layers.1.engram.embed.weight"
    table = random_dense(cfg)[name] * size
    table[3] = 0
    out = quantise(cfg, {name: table})
    back = dequantise("rows", out[name], out[scale_name(name)], 32)
    assert ((back - table).abs() <= table.abs() / 16 + size * 2**-13).all()
    assert (back[3] == 0).all()


def test_error_bounds_of_the_three_formats(raw_config, dense, stored):
    """Half a step of e4m3 is 1/16 of a value, of e2m1 a quarter of the block's largest."""
    for name, entry in entries(Config.from_dict(raw_config)).items():
        if entry.kind == "plain":
            continue
        back = dequantise(entry.kind, stored[name], stored[scale_name(name)], 32)
        error, exact = (back - dense[name]).abs(), dense[name].abs()
        if entry.kind == "expert":
            blocks = exact.unflatten(1, (-1, 32)).amax(-1, keepdim=True)
            assert (error.unflatten(1, (-1, 32)) <= blocks / 3).all(), name
        else:
            assert (error <= exact / 16 + exact.max() * 2**-15).all(), name


def test_storing_what_was_read_changes_nothing(raw_config, stored):
    """Quantisation is a projection: a dense copy of a checkpoint is stored as the same values."""
    cfg = Config.from_dict(raw_config)
    once = {
        name: dequantise(entry.kind, stored[name], stored[scale_name(name)], 32)
        if entry.kind != "plain"
        else stored[name].float()
        for name, entry in entries(cfg).items()
    }
    again = quantise(cfg, once)
    for name, entry in entries(cfg).items():
        if entry.kind == "plain":
            assert torch.equal(again[name], stored[name]), name
        else:
            back = dequantise(entry.kind, again[name], again[scale_name(name)], 32)
            assert torch.equal(back, once[name]), name


@pytest.mark.parametrize("tile", [32, 128])
def test_odd_sizes_and_both_tile_sizes(tile):
    raw = tiny_random_config(hidden_size=96, q_lora_rank=48, moe_intermediate_size=160)
    raw["quantization_config"] = {"weight_block_size": [tile, tile], "expert_dtype": "fp8"}
    cfg = Config.from_dict(raw)
    names = ["layers.0.attn.wq_a.weight", "layers.0.ffn.experts.1.w2.weight"]
    weights = {name: w for name, w in random_dense(cfg).items() if name in names}
    out = quantise(cfg, weights)
    assert [n for n in out if n.endswith("weight")] == names
    for name in names:
        back = dequantise("linear", out[name], out[scale_name(name)], tile)
        assert back.shape == weights[name].shape
        assert (back - weights[name]).abs().max() <= weights[name].abs().max() / 16


def test_fp32_and_bf16_storage_of_plain_models():
    cfg = dataclasses.replace(Config.from_dict(tiny_random_config()), quantization=None)
    weights = random_dense(cfg)
    assert {t.dtype for t in quantise(cfg, weights).values()} == {torch.bfloat16, torch.float32}
    exact = quantise(cfg, weights, lambda name, entry: "F32")
    assert all(torch.equal(exact[name], weights[name]) for name in weights)


def test_weights_that_do_not_belong_are_refused():
    cfg = Config.from_dict(tiny_random_config())
    with pytest.raises(CheckpointError, match="1 weights the config does not describe: nope"):
        quantise(cfg, {"nope": torch.zeros(1)})
    with pytest.raises(CheckpointError, match=r"norm.weight is \[3\], must be \[64\]"):
        quantise(cfg, {"norm.weight": torch.zeros(3)})
    with pytest.raises(CheckpointError, match="dtype 'F16'"):
        quantise(cfg, {"norm.weight": torch.zeros(64)}, lambda name, entry: "F16")
