"""Files that are not what they say: every refusal names the file or the tensors."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors import safe_open

from dslearn.checkpoint.reader import Checkpoint
from dslearn.checkpoint.shards import listed, locate, read_header
from dslearn.errors import CheckpointError, ConfigError
from tests.support.files import INDEX, save_sharded, save_single, write_index, write_raw


@pytest.fixture(scope="session")
def pristine(tmp_path_factory, raw_config, stored):
    directory = tmp_path_factory.mktemp("pristine")
    save_sharded(directory, raw_config, stored, 3)
    return directory


@pytest.fixture
def sharded(tmp_path, pristine):
    shutil.copytree(pristine, tmp_path / "sharded")
    return tmp_path / "sharded"


def weight_map(directory):
    return json.loads((directory / INDEX).read_text())["weight_map"]


def test_headers_agree_with_the_safetensors_library(pristine):
    seen = 0
    for path in sorted(pristine.glob("*.safetensors")):
        found = read_header(path)
        with safe_open(path, "pt") as file:
            assert set(file.keys()) == set(found)
            for name in file.keys():  # noqa: SIM118 (a method of the library, not a dict)
                view = file.get_slice(name)
                assert (found[name].dtype, list(found[name].shape)) == (
                    view.get_dtype(),
                    view.get_shape(),
                )
                seen += 1
    assert seen == len(locate(pristine))


def test_an_absent_shard_is_named(sharded):
    names = [n for n, s in weight_map(sharded).items() if s == "model-00002-of-00003.safetensors"]
    (sharded / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"1 shard files absent.*model-00002-of-00003") as e:
        Checkpoint(sharded)
    assert f"with {len(names)} tensors: {names[0]}, {names[1]}" in str(e.value)


@pytest.mark.parametrize("cut", [1, 1000, 200_000])
def test_a_truncated_shard_names_the_tensors_it_cut_off(sharded, cut):
    path = sharded / "model-00003-of-00003.safetensors"
    last = max(read_header(path).items(), key=lambda item: item[1].start)[0]
    data = path.read_bytes()
    path.write_bytes(data[:-cut])
    with pytest.raises(CheckpointError, match="truncated") as caught:
        Checkpoint(sharded)
    assert path.name in str(caught.value)
    assert last in str(caught.value) or "and" in str(caught.value)


@pytest.mark.parametrize("keep", [0, 7, 8, 500])
def test_a_shard_truncated_inside_its_header(sharded, keep):
    path = sharded / "model-00001-of-00003.safetensors"
    names = list(read_header(path))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match="model-00001.*(truncated|not safetensors)") as e:
        Checkpoint(sharded)
    assert f"with {len(names)} tensors: " in str(e.value)
    assert sum(name in str(e.value) for name in names) >= 8


def test_an_index_that_names_a_tensor_its_shard_lacks(sharded):
    names = weight_map(sharded)
    first = next(iter(names))
    names[first] = {
        "model-00001-of-00003.safetensors": "model-00002-of-00003.safetensors",
        "model-00002-of-00003.safetensors": "model-00001-of-00003.safetensors",
        "model-00003-of-00003.safetensors": "model-00001-of-00003.safetensors",
    }[names[first]]
    write_index(sharded, names)
    with pytest.raises(CheckpointError, match="1 tensors absent from the shard") as caught:
        Checkpoint(sharded)
    assert str(caught.value).count(first) == 2  # absent there, unnamed here


def test_a_tensor_in_a_shard_that_the_index_does_not_name(sharded):
    names = weight_map(sharded)
    dropped = [name for name in names if name.startswith("layers.3.attn.w")]
    for name in dropped:
        del names[name]
    write_index(sharded, names)
    with pytest.raises(CheckpointError, match=f"{len(dropped)} tensors in a shard that the") as e:
        Checkpoint(sharded)
    assert dropped[0] in str(e.value)
    assert f"and {len(dropped) - 8} more" in str(e.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "weight_map"),
        ("[]", "weight_map"),
        ('{"metadata": {}}', "weight_map"),
        ('{"weight_map": {}}', "not empty"),
        ('{"weight_map": {"a": 1}}', "file names"),
        ('{"weight_map": {"a": "../b.safetensors"}}', "folder"),
        ('{"weight_map": {"a": "/etc/passwd"}}', "folder"),
    ],
)
def test_an_index_that_is_not_one(sharded, text, said):
    (sharded / INDEX).write_text(text)
    with pytest.raises(CheckpointError, match=said):
        Checkpoint(sharded)


def test_directories_that_hold_no_checkpoint(tmp_path, raw_config):
    with pytest.raises(CheckpointError, match="no such directory"):
        Checkpoint(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="no such directory"):
        locate(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="no such file"):
        Checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(raw_config))
    with pytest.raises(CheckpointError, match="holds neither"):
        Checkpoint(tmp_path)


def test_a_single_file_needs_no_index(tmp_path, raw_config, stored):
    checkpoint = Checkpoint(save_single(tmp_path, raw_config, stored))
    assert set(checkpoint.names) == set(stored)
    assert torch.equal(checkpoint.tensor("norm.weight"), stored["norm.weight"])


A = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("header", "data", "said"),
    [
        ({"a": {**A, "shape": [3]}}, b"x" * 8, "12 bytes"),
        ({"a": {**A, "data_offsets": [0, 4]}}, b"x" * 4, "byte range holds 4"),
        ({"a": {**A, "data_offsets": [8, 0]}}, b"x" * 8, "byte range 8 to 0"),
        ({"a": {**A, "shape": [-2], "data_offsets": [0, 8]}}, b"x" * 8, "shape"),
        ({"a": {**A, "data_offsets": [4, 12]}}, b"x" * 12, "expected"),
        ({"a": A, "b": A}, b"x" * 8, "without holes or overlap"),
        ({"a": A}, b"x" * 9, "1 bytes after the last tensor"),
        ({"a": A}, b"x" * 7, "truncated"),
        ({"a": {"shape": [2]}}, b"x" * 8, "not safetensors"),
        ({"a": 3}, b"x" * 8, "not safetensors"),
        (b"[1]", b"", "not safetensors"),
        (b"{nope", b"", "not safetensors"),
        (b"\xff\xff", b"", "not safetensors"),
    ],
)
def test_headers_that_contradict_themselves(tmp_path, header, data, said):
    write_raw(tmp_path / "x.safetensors", header, data)
    with pytest.raises(CheckpointError, match=said) as caught:
        read_header(tmp_path / "x.safetensors")
    assert "x.safetensors" in str(caught.value)


def test_a_file_of_another_kind(tmp_path):
    (tmp_path / "x.safetensors").write_bytes(b"\x80\x02}q\x00X\x05\x00\x00\x00hello" * 10)
    with pytest.raises(CheckpointError, match="not safetensors"):
        read_header(tmp_path / "x.safetensors")


def test_empty_tensors_and_metadata_are_fine(tmp_path):
    header = {"__metadata__": {"a": "b"}, "e": {**A, "shape": [0], "data_offsets": [0, 0]}, "a": A}
    write_raw(tmp_path / "x.safetensors", header, b"x" * 8)
    found = read_header(tmp_path / "x.safetensors")
    assert {name: t.nbytes for name, t in found.items()} == {"e": 0, "a": 8}


def test_lists_show_eight_keys_and_the_count():
    assert listed(["a", "b"], "lost") == "2 lost: a, b"
    assert listed(map(str, range(11)), "lost") == "11 lost: 0, 1, 2, 3, 4, 5, 6, 7 and 3 more"
