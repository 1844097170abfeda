"""Writer and reader, and the safetensors library as a third reader of the same files."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors import safe_open

from dslearn.checkpoint.reader import Checkpoint
from dslearn.checkpoint.shards import INDEX
from dslearn.checkpoint.writer import write
from dslearn.errors import CheckpointError, ConfigError, UsageError


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    same = a.dtype == b.dtype and a.shape == b.shape
    return same and torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


@pytest.mark.parametrize("limit", [1, 60_000, 1 << 30])
def test_round_trip_is_bitwise(tmp_path, raw_config, stored, limit):
    write(tmp_path, raw_config, stored, max_shard_bytes=limit)
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.names == tuple(stored)
    assert all(same_bytes(checkpoint.tensor(name), t) for name, t in stored.items())
    assert checkpoint.total_bytes == sum(t.nbytes for t in stored.values())
    assert json.loads((tmp_path / "config.json").read_text()) == raw_config


def test_the_layout_is_the_released_one(tmp_path, raw_config, stored):
    write(tmp_path, raw_config, stored, max_shard_bytes=500_000)
    shards = sorted(p.name for p in tmp_path.glob("*.safetensors"))
    count = len(shards)
    assert count > 2
    assert shards == [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]
    index = json.loads((tmp_path / INDEX).read_text())
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in stored.values())
    assert set(index["weight_map"]) == set(stored)
    sizes = [
        sum(stored[n].nbytes for n, s in index["weight_map"].items() if s == f) for f in shards
    ]
    assert max(sizes) <= 500_000


def test_the_safetensors_library_reads_it(tmp_path, raw_config, stored):
    write(tmp_path, raw_config, stored, max_shard_bytes=500_000)
    seen = set()
    for path in tmp_path.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            assert file.metadata() == {"format": "pt"}
            for name in file.keys():  # noqa: SIM118 (a method of the library, not a dict)
                assert same_bytes(file.get_tensor(name), stored[name]), name
                seen.add(name)
    assert seen == set(stored)


def test_every_tensor_is_aligned_to_its_element(tmp_path, raw_config, stored):
    write(tmp_path, raw_config, stored)
    checkpoint = Checkpoint(tmp_path)
    for name, tensor in stored.items():
        assert checkpoint.location(name).start % tensor.dtype.itemsize == 0, name


def test_same_input_same_bytes_whatever_the_order(tmp_path, raw_config, stored):
    write(tmp_path / "a", raw_config, stored, max_shard_bytes=500_000)
    backwards = dict(reversed(stored.items()))
    write(tmp_path / "b", raw_config, backwards, max_shard_bytes=500_000)
    files = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert files == sorted(p.name for p in (tmp_path / "b").iterdir())
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file


def test_strided_tensors_are_written_as_they_look(tmp_path, raw_config, stored):
    name = "embed.weight"
    strided = stored[name].t().contiguous().t()
    assert not strided.is_contiguous()
    write(tmp_path, raw_config, {**stored, name: strided})
    assert torch.equal(Checkpoint(tmp_path).tensor(name), stored[name])


def test_rewriting_replaces_shards_and_keeps_other_files(tmp_path, raw_config, stored):
    (tmp_path / "notes.txt").write_text("mine")
    write(tmp_path, raw_config, stored, max_shard_bytes=200_000)
    many = len(list(tmp_path.glob("*.safetensors")))
    changed = {**stored, "norm.weight": stored["norm.weight"] * 2}
    extra = {"tokenizer.json": "{}", "raw.bin": b"\x00\x01"}
    write(tmp_path, raw_config, changed, extra_files=extra)
    assert many > 5
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "config.json",
        "model-00001-of-00001.safetensors",
        INDEX,
        "notes.txt",
        "raw.bin",
        "tokenizer.json",
    ]
    assert (tmp_path / "raw.bin").read_bytes() == b"\x00\x01"
    assert torch.equal(Checkpoint(tmp_path).tensor("norm.weight"), changed["norm.weight"])


def test_a_failed_write_leaves_the_old_checkpoint_whole(tmp_path, raw_config, stored, monkeypatch):
    write(tmp_path, raw_config, stored)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    class Full(OSError):
        pass

    def fail(*args):
        raise Full

    monkeypatch.setattr("dslearn.checkpoint.writer._index", fail)
    with pytest.raises(Full):
        write(tmp_path, raw_config, {**stored, "norm.weight": stored["norm.weight"] * 2})
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_rename_that_stops_half_way_leaves_no_mixture(tmp_path, raw_config, stored, monkeypatch):
    import os

    write(tmp_path, raw_config, stored, max_shard_bytes=500_000)
    calls = []

    def crash(source, target, real=os.replace):
        if len(calls) == 2:
            raise OSError("power cut")
        calls.append(target)
        real(source, target)

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(OSError, match="power cut"):
        write(tmp_path, raw_config, stored, max_shard_bytes=500_000)
    with pytest.raises(CheckpointError, match="holds neither"):
        Checkpoint(tmp_path)


def test_what_the_reader_would_refuse_is_not_written(tmp_path, raw_config, stored):
    target = tmp_path / "out"
    without = {name: t for name, t in stored.items() if name != "norm.weight"}
    with pytest.raises(CheckpointError, match="1 tensors missing: norm.weight"):
        write(target, raw_config, without)
    with pytest.raises(CheckpointError, match="1 tensors unexpected: more"):
        write(target, raw_config, {**stored, "more": torch.zeros(1)})
    with pytest.raises(CheckpointError, match="norm.weight is torch.float16"):
        write(target, raw_config, {**stored, "norm.weight": torch.zeros(64).half()})
    with pytest.raises(ConfigError, match="model_type"):
        write(target, {**raw_config, "model_type": "llama"}, stored)
    with pytest.raises(UsageError, match="max_shard_bytes=0"):
        write(target, raw_config, stored, max_shard_bytes=0)
    for name in ("config.json", INDEX, "a/b", "model-00001-of-00001.safetensors", ".hidden"):
        with pytest.raises(UsageError, match="extra file"):
            write(target, raw_config, stored, extra_files={name: ""})
    assert not target.exists()
