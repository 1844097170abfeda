"""Graphs on disk: built once by one of many, checked, keyed by all that they depend on."""

from __future__ import annotations

import errno
import multiprocessing
import os
import time
from pathlib import Path

import pytest
import torch

from dslearn import regions
from dslearn.errors import UsageError
from dslearn.model.stage import stage
from dslearn.regions.backend import build, graphs
from dslearn.regions.cache import GraphCache
from dslearn.regions.written import from_bytes, to_bytes
from tests.support.captured import captured
from tests.support.stack import Stack, inputs


def run(stack):
    with torch.inference_mode(), regions.use("regions"):
        return stack(*inputs())


def again():
    """As a new process: no graph in memory."""
    graphs.cache_clear()
    regions.forget()
    torch._dynamo.reset()


def test_a_second_process_loads_what_the_first_built(own_graphs):
    expected = run(Stack())
    assert dict(graphs().counts) == {"miss": 1} and len(list(own_graphs.glob("*.graph"))) == 1
    regions.forget()  # the same process compiles again: from memory
    torch._dynamo.reset()
    run(Stack())
    assert dict(graphs().counts) == {"miss": 1, "hit": 1}
    again()
    assert torch.equal(run(Stack()), expected)
    assert dict(graphs().counts) == {"load": 1}


def test_what_is_loaded_is_what_runs(own_graphs):
    expected = run(Stack())
    (path,) = own_graphs.glob("*.graph")
    written = from_bytes(path.read_bytes())
    assert "aten.index_copy_" in written.source
    other = written.source.replace("aten.add.Tensor", "aten.sub.Tensor")
    path.write_bytes(to_bytes(type(written)(**{**vars(written), "source": other})))
    again()
    assert not torch.equal(run(Stack()), expected)


class Tables:
    @stage("tables")
    def forward(self, x, codes):
        return x + torch.tensor([1.5, -2.0]), codes.float()


def test_constants_are_loaded_with_their_values(own_graphs):
    """Of the source, and the tables that 8-bit floats are read by."""
    codes = torch.tensor([0x38, 0xC0], dtype=torch.uint8).view(torch.float8_e4m3fn)  # 1, -2
    for how in ("miss", "load"):
        with torch.inference_mode(), regions.use("regions"):
            found = Tables().forward(torch.ones(2), codes)
        assert [one.tolist() for one in found] == [[2.5, -1.0], [1.0, -2.0]]
        assert dict(graphs().counts) == {how: 1}
        again()


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "other"])
def test_a_damaged_file_is_built_again(own_graphs, damage, caplog):
    expected = run(Stack())
    (path,) = own_graphs.glob("*.graph")
    good = path.read_bytes()
    bad = {
        "cut": good[:-40],
        "flip": good[:200] + bytes([good[200] ^ 1]) + good[201:],
        "empty": b"",
        "other": b"not a graph\n",
    }[damage]
    path.write_bytes(bad)
    again()
    assert torch.equal(run(Stack()), expected)
    assert dict(graphs().counts) == {"miss": 1, "corrupt": 1}
    assert path.read_bytes() == good and "is damaged" in caplog.text


def _rank(folder, started, results):
    """One of several processes that want the same graph."""
    kept = GraphCache(Path(folder))
    module = captured(lambda x: x * 2 + 1, torch.ones(3))

    def slow():
        time.sleep(0.3)
        return build(module)

    started.wait()
    written, how = kept.get("k" * 64, slow)
    results.put((how, written.module().forward(torch.ones(3))[0].tolist()))


def test_of_many_ranks_one_compiles(tmp_path):
    context = multiprocessing.get_context("fork")
    started, results = context.Barrier(4), context.Queue()
    ranks = [context.Process(target=_rank, args=(tmp_path, started, results)) for _ in range(4)]
    for rank in ranks:
        rank.start()
    found = [results.get(timeout=120) for _ in ranks]
    for rank in ranks:
        rank.join(timeout=60)
    assert sorted(how for how, _ in found) == ["load", "load", "load", "miss"]
    assert all(values == [3, 3, 3] for _, values in found)


def test_a_failed_build_leaves_nothing_and_holds_no_lock(tmp_path):
    kept = GraphCache(tmp_path)

    def fails():
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        kept.get("a", fails)
    assert not list(tmp_path.glob("*.graph")) and not kept.counts
    module = captured(lambda x: x + 1, torch.ones(2))
    assert kept.get("a", lambda: build(module))[1] == "miss"


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="file.*DSLEARN_CACHE_DIR"):
        GraphCache(tmp_path / "file" / "graphs").get("a", lambda: None)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "a.graph").mkdir()
    with pytest.raises(UsageError, match="a.graph'; set DSLEARN_CACHE_DIR"):
        GraphCache(tmp_path).get("a", lambda: pytest.fail("nothing is built"))


def test_a_full_disk_leaves_no_part_of_a_file(tmp_path, monkeypatch):
    module = captured(lambda x: x + 1, torch.ones(2))

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UsageError, match="No space left on device; set DSLEARN_CACHE_DIR"):
        GraphCache(tmp_path).get("a", lambda: build(module))
    assert [path.name for path in tmp_path.iterdir()] == ["a.lock"]
