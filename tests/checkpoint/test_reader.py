"""Lazy reading: only what is asked for, checked before anything is handed out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dslearn.checkpoint.reader import Checkpoint
from dslearn.errors import CheckpointError


@pytest.fixture
def checkpoint(damaged):
    return Checkpoint(damaged())


def test_row_ranges_read_only_their_bytes(checkpoint, stored):
    name = "layers.1.engram.embed.weight"
    part = checkpoint.tensor(name, rows=(5, 9))
    assert torch.equal(part.view(torch.uint8), stored[name][5:9].view(torch.uint8))
    assert checkpoint.tensor(name, rows=(3, 3)).shape == (0, 64)
    for rows in ((-1, 2), (2, 1), (0, 385)):
        with pytest.raises(CheckpointError, match="rows"):
            checkpoint.tensor(name, rows=rows)


def test_chunks_are_the_tensor(checkpoint, stored):
    pieces = list(checkpoint.chunks("embed.weight", size=1000))
    assert max(map(len, pieces)) == 1000
    assert b"".join(pieces) == stored["embed.weight"].view(torch.uint8).numpy().tobytes()


def test_dense_follows_the_storage(checkpoint, dense, stored):
    assert checkpoint.is_quantised("layers.0.attn.wo_a.weight")
    assert not checkpoint.is_quantised("layers.0.attn.q_norm.weight")
    assert not checkpoint.is_quantised("layers.0.attn.wo_a.scale")
    for name, exact in dense.items():
        got = checkpoint.dense(name)
        assert got.dtype == torch.float32 and got.shape == exact.shape
        rounding = 0.2 if ".experts." in name else 0.05
        assert (got - exact).norm() <= rounding * exact.norm(), name
    assert torch.equal(checkpoint.dense("layers.0.hc_attn_fn"), dense["layers.0.hc_attn_fn"])


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("layers.3.attn.wq_b.weigth", "layers.3.attn.wq_b.weight"),
        ("layer.3.ffn.gate.bias", "layers.3.ffn.gate.bias"),
        ("layers.3.attn.wqb.weight", "layers.3.attn.wq_b.weight"),
        ("norm", "norm.weight"),
    ],
)
def test_unknown_names_suggest_close_ones(checkpoint, asked, meant):
    for method in (checkpoint.spec, checkpoint.tensor, checkpoint.dense, checkpoint.location):
        with pytest.raises(CheckpointError, match="no tensor") as caught:
            method(asked)
        assert meant in str(caught.value)


def test_a_file_that_shrinks_after_opening_is_noticed(checkpoint):
    path = checkpoint.directory / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    last = max(checkpoint.names, key=lambda name: checkpoint.location(name).start)
    with pytest.raises(CheckpointError, match=f"ends inside {last}"):
        checkpoint.tensor(last)


def test_opening_reads_no_tensor(damaged, monkeypatch):
    def fail(*args):
        raise AssertionError("a tensor was read while headers were judged")

    monkeypatch.setattr(Checkpoint, "_read", fail)
    assert Checkpoint(damaged()).names
    with pytest.raises(CheckpointError, match="1 tensors missing"):
        Checkpoint(damaged(lambda tensors: tensors.pop("norm.weight")))


def test_counts_add_up(checkpoint, stored):
    for by in ("group", "part"):
        counts = checkpoint.count(by).values()
        assert sum(number for number, _ in counts) == len(stored)
        assert sum(size for _, size in counts) == checkpoint.total_bytes


CHILD = """
import json, sys
import torch
from dslearn.checkpoint.reader import Checkpoint

def peak():  # not ru_maxrss: a child starts with its parent's
    text = open("/proc/self/status").read()
    return int(text.split("VmHWM:")[1].split()[0]) * 1024

torch.zeros(1) + 1
before = peak()
checkpoint = Checkpoint(sys.argv[1])
opened = peak()
held = {name: checkpoint.tensor(name) for name in checkpoint.names}
size = sum(t.nbytes for t in held.values())
print(json.dumps({"size": size, "open": opened - before, "all": peak() - before}))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from /proc")
def test_memory_stays_below_the_tensors_plus_200_mb(tmp_path, raw_config):
    """420 MB of tensors in a sparse file: a reader that copied or mapped would hold them twice."""
    raw = {**raw_config, "quantization_config": None, "vocab_size": 800_000}
    big = tmp_path / "big"
    big.mkdir()
    (big / "config.json").write_text(json.dumps(raw))
    sparse(big / "model.safetensors", raw)
    root = str(Path(__file__).parents[2])
    out = subprocess.run(
        [sys.executable, "-c", CHILD, str(big)],
        capture_output=True,
        text=True,
        cwd=root,
        check=True,
    )
    found = json.loads(out.stdout)
    assert found["size"] > 400e6
    assert found["open"] < 50e6, "opening must not read tensors"
    assert found["all"] < found["size"] + 200e6
    assert found["all"] > 0.9 * found["size"], "the measurement itself must see the tensors"


def sparse(path: Path, raw) -> None:
    """A shard of the right size whose bytes are a hole: no disk, no time."""
    from dslearn.checkpoint.inventory import inventory
    from dslearn.config import Config

    header, at = {}, 0
    for name, spec in inventory(Config.from_dict(raw)).items():
        dtype = "F32" if spec.dtype == "BF16" else spec.dtype
        size = spec.nbytes * (2 if spec.dtype == "BF16" else 1)
        header[name] = {"dtype": dtype, "shape": spec.shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)
