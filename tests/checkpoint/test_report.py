"""`dslearn inspect`: the tables, and a tile taken apart."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from dslearn.checkpoint.inventory import inventory
from dslearn.checkpoint.reader import Checkpoint
from dslearn.checkpoint.report import inspect
from dslearn.checkpoint.taken import take_apart
from dslearn.config import Config
from dslearn.errors import CheckpointError, UsageError
from tests.support.files import save_single

ml_dtypes = pytest.importorskip("ml_dtypes")
RELEASED = Path(__file__).parents[1] / "data" / "v4_1_flash_config.json"
WEIGHT = "layers.0.attn.wq_b.weight"  # [256, 32], 8 x 1 tiles


@pytest.fixture(scope="session")
def directory(tmp_path_factory, raw_config, stored):
    """One tile holds every fp8 code once per row, so that nothing is left out."""
    tensors = dict(stored)
    codes = torch.arange(256, dtype=torch.uint8).view(8, 32).repeat(4, 1)
    tensors[WEIGHT] = tensors[WEIGHT].clone()
    tensors[WEIGHT].view(torch.uint8)[64:96] = codes
    tensors[WEIGHT].view(torch.uint8)[96:128] = 0x77  # 240, the largest that both sides read alike
    return save_single(tmp_path_factory.mktemp("report"), raw_config, tensors)


def test_the_overview_adds_up(directory, stored):
    lines = inspect(directory)
    total = next(line for line in lines if line.startswith("total"))
    assert f"{len(stored):,}" in total
    assert f"{sum(t.nbytes for t in stored.values()):,}" in total
    experts = next(line for line in lines if line.startswith("routed experts"))
    assert "288" in experts and "I8 (144), F8_E8M0 (144)" in experts
    assert "32x32 tiles, fp4 experts" in lines[1]
    assert lines[-1].startswith(f"target: {len(stored):,} tensors")


def test_the_released_checkpoint_is_inspected_from_headers_alone(tmp_path):
    """510 GB in 48 shards of holes: only the headers are there to read."""
    specs = inventory(Config.from_file(RELEASED))
    (tmp_path / "config.json").write_bytes(RELEASED.read_bytes())
    where, names = {}, list(specs)
    for shard in range(48):
        file = f"model-{shard + 1:05d}-of-00048.safetensors"
        header, at = {}, 0
        for name in names[shard::48]:
            spec = specs[name]
            end = at + spec.nbytes
            header[name] = {"dtype": spec.dtype, "shape": spec.shape, "data_offsets": [at, end]}
            where[name], at = file, end
        text = json.dumps(header).encode()
        with (tmp_path / file).open("wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            try:
                out.truncate(8 + len(text) + at)
            except OSError:
                pytest.skip("this file system has no sparse files of that size")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    lines = inspect(tmp_path)
    assert any("96,085" in line and "510,286,023,000" in line for line in lines)
    assert any(line.startswith("draft: 2,401 tensors, 7,932,874,632 bytes") for line in lines)
    assert any(line.startswith("vision: 266 tensors, 970,536,960 bytes") for line in lines)
    with pytest.raises(CheckpointError, match="did you mean layers.39.ffn.experts.383.w1.weight"):
        inspect(tmp_path, "layers.39.ffn.experts.383.w1.wieght")


def test_one_tensor_shows_where_it_lies(directory):
    lines = inspect(directory, WEIGHT)
    assert f"{WEIGHT}: F8_E4M3 [256, 32], 8,192 bytes" in lines[0]
    assert "model.safetensors" in lines[1]
    assert "layers.0.attn.wq_b.scale: F8_E8M0 [8, 1]" in lines[2]
    assert "8 x 1 tiles" in lines[3] and "7,0" in lines[3]
    assert len(inspect(directory, "norm.weight")) == 2


def test_both_readings_of_every_code_are_those_of_ml_dtypes(directory):
    tile = take_apart(Checkpoint(directory), WEIGHT, (2, 0))
    assert tile.codes is not None and tile.scale_bytes is not None
    assert tile.codes.unique().numel() == 256
    scale = 2.0 ** (int(tile.scale_bytes) - 127)
    raw = tile.codes.numpy()
    for values, dtype in (
        (tile.values, ml_dtypes.float8_e4m3fn),
        (tile.ieee, ml_dtypes.float8_e4m3),
    ):
        want = raw.view(dtype).astype(np.float32) * np.float32(scale)
        assert np.array_equal(values.numpy(), want, equal_nan=True)
    different = sorted(set(tile.codes[tile.differs].tolist()))
    assert different == [*range(0x78, 0x7F), *range(0xF8, 0xFF)]  # the 14


def test_a_printed_tile_holds_codes_scale_and_both_values(directory, stored):
    lines = inspect(directory, WEIGHT, "2,0")
    byte = int(stored["layers.0.attn.wq_b.scale"].view(torch.uint8)[2, 0])
    assert lines[0] == f"{WEIGHT} (F8_E4M3), tile 2,0: 32x32"
    assert lines[1].startswith(f"scale byte {byte} = 2^{byte - 127} = ")
    assert lines[3] == " ".join(f"{code:02x}" for code in range(32))
    table = {line.split()[0]: line.split() for line in lines[36:-1] if line.startswith("  ")}
    assert len(table) == 256
    assert table["7e"][1:4] == ["4", "448", "nan"] and "differently" in table["7e"]
    assert table["77"][1:] == ["4", "240", "240"]
    assert table["78"][2:4] == ["256", "inf"]
    assert table["7f"][1:] == ["4", "nan", "nan"]
    assert lines[-1].startswith("56 of 1024 bytes are read differently")
    assert "rounds 64 codes" in lines[-1]  # 8 per sign, 4 times


def test_a_tile_without_large_codes_is_read_alike(directory):
    lines = inspect(directory, WEIGHT, (3, 0))
    assert lines[-2].split() == ["77", "1024", "240", "240"]
    assert lines[-1] == "0 of 1024 bytes are read differently by the two sides"


def test_an_expert_tile_has_one_scale_per_row(directory, dense):
    name = "layers.0.ffn.experts.0.w1.weight"  # [96, 64]
    checkpoint = Checkpoint(directory)
    tile = take_apart(checkpoint, name, (2, 1))
    assert tile.codes is not None and tile.scale_bytes is not None
    assert tile.scale_bytes.shape == (32, 1) and int(tile.codes.max()) < 16
    assert torch.equal(tile.values, checkpoint.dense(name)[64:96, 32:])
    assert not tile.differs.any()
    lines = inspect(directory, name, "2,1")
    assert sum("scale byte" in line for line in lines) == 32
    assert lines[2].split()[:2] == [f"{c:x}" for c in tile.codes[0, :2].tolist()]


def test_an_engram_tile_has_one_scale_per_row(directory):
    name = "layers.1.engram.embed.weight"
    checkpoint = Checkpoint(directory)
    tile = take_apart(checkpoint, name, (3, 1))
    assert torch.equal(tile.values, checkpoint.dense(name)[96:128, 32:])
    assert tile.scale_bytes is not None and tile.scale_bytes.unique().numel() > 1


def test_plain_and_scale_tensors_show_their_numbers(directory, stored):
    tile = take_apart(Checkpoint(directory), "embed.weight", (4, 1))
    assert torch.equal(tile.values, stored["embed.weight"][128:160, 32:].float())
    assert len(inspect(directory, "embed.weight", "4,1")) == 33
    scales = take_apart(Checkpoint(directory), "layers.0.attn.wq_b.scale", (0, 0))
    assert torch.equal(scales.values, stored["layers.0.attn.wq_b.scale"].float())


def test_edge_tiles_are_cut(tmp_path, raw_config):
    from dslearn.checkpoint.storage import quantise
    from tests.support.random_model import random_dense

    raw = {**raw_config, "q_lora_rank": 48, "vocab_size": 150}
    cfg = Config.from_dict(raw)
    directory = save_single(tmp_path, raw, quantise(cfg, random_dense(cfg)))
    checkpoint = Checkpoint(directory)
    tile = take_apart(checkpoint, WEIGHT, (1, 1))
    assert torch.equal(tile.values, checkpoint.dense(WEIGHT)[32:64, 32:])
    assert tile.values.shape == (32, 16)
    assert take_apart(checkpoint, "embed.weight", (4, 0)).values.shape == (22, 32)


def test_128_tiles_share_one_scale_among_16_tiles(tmp_path, raw_config):
    from dslearn.checkpoint.storage import quantise
    from tests.support.random_model import random_dense

    raw = {**raw_config, "quantization_config": {"weight_block_size": [128, 128]}}
    cfg = Config.from_dict(raw)
    directory = save_single(tmp_path, raw, quantise(cfg, random_dense(cfg)))
    checkpoint = Checkpoint(directory)
    dense = checkpoint.dense("layers.1.engram.wkv.weight")  # [320, 384]
    for row, column in ((0, 0), (3, 4), (9, 11)):
        tile = take_apart(checkpoint, "layers.1.engram.wkv.weight", (row, column))
        want = dense[32 * row : 32 * row + 32, 32 * column : 32 * column + 32]
        assert torch.equal(tile.values, want)


@pytest.mark.parametrize(
    ("tensor", "tile", "said"),
    [
        (WEIGHT, "8,0", "8 x 1 tiles, 0,0 to 7,0"),
        (WEIGHT, "0,1", "8 x 1 tiles"),
        (WEIGHT, "-1,0", "8 x 1 tiles"),
        (WEIGHT, "0", "two whole numbers"),
        (WEIGHT, "0,0,0", "two whole numbers"),
        (WEIGHT, "a,b", "two whole numbers"),
        (WEIGHT, "0.5,1", "two whole numbers"),
        ("norm.weight", "0,0", "only a matrix has tiles"),
        (None, "0,0", "--tile needs --tensor"),
    ],
)
def test_tiles_that_are_not_there(directory, tensor, tile, said):
    with pytest.raises(UsageError, match=said):
        inspect(directory, tensor, tile)


def test_an_unknown_tensor_suggests_names(directory):
    with pytest.raises(CheckpointError, match="did you mean .*wq_b.weight"):
        inspect(directory, "layers.0.attn.wq_b.weights", "0,0")
