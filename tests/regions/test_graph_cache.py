"""Graphs on disk: built once by one of many, checked, keyed by all that they depend on."""

from __future__ import annotations

import multiprocessing
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from dslearn import regions
from dslearn.errors import UsageError
from dslearn.model.stage import stage
from dslearn.regions import key
from dslearn.regions.backend import build, graphs
from dslearn.regions.cache import GraphCache
from dslearn.regions.written import from_bytes, to_bytes
from tests.support.stack import Stack, inputs


def captured(function, *given):
    """Dynamo's graph of a function."""
    seen = []

    def backend(module, examples):
        seen.append(module)
        return module.forward

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(function, backend=backend, fullgraph=True, dynamic=False)(*given)
    return seen[0]


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


def key_for(function, *given, flags=()):
    return key.key_of(captured(function, *given), flags)


class Scaled(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4))
        self.scale = scale

    @stage("scaled")
    def forward(self, x):
        return x @ self.weight * self.scale


def test_keys_tell_apart_what_makes_other_graphs():
    x = torch.ones(4, 4)
    pool = torch.zeros(4, 8)

    def both(a, b):
        return a + 1, b + 1

    keys = [
        key_for(Scaled(2.0), x),
        key_for(Scaled(3.0), x),
        key_for(Scaled(2.0), x[:2]),
        key_for(Scaled(2.0), torch.ones(4, 8)[:, ::2]),
        key_for(Scaled(2.0).to(torch.bfloat16), x.to(torch.bfloat16)),
        key_for(Scaled(2.0), x, flags=("-O1",)),
        key_for(both, pool[:, :4], torch.zeros(4, 8)[:, :4]),
        key_for(both, pool[:, :4], pool[:, 4:]),
        key_for(lambda a: torch.ops.aten.relu(a), x),
        key_for(lambda a: torch.ops.aten.sigmoid(a), x),
    ]
    assert len(set(keys)) == len(keys)


class Products(nn.Module):
    @stage("products")
    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            exact = x @ x
        return torch.tensor([1.5, 2.5]), exact, x @ x


def test_what_torch_is_set_to_is_in_the_key(own_graphs):
    """The default dtype and autocast are in no node of a captured graph, and decide its dtypes."""
    narrow, x, found = torch.bfloat16, torch.ones(2, 2), []
    with torch.inference_mode(), regions.use("regions"):
        for default, cast in ((narrow, False), (torch.float32, True), (torch.float32, False)):
            torch.set_default_dtype(default)
            try:
                with torch.autocast("cpu", narrow, enabled=cast):
                    found.append([one.dtype for one in Products()(x)])
            finally:
                torch.set_default_dtype(torch.float32)
    plain = [torch.float32] * 3
    assert found == [[narrow, *plain[1:]], [*plain[:2], narrow], plain]


def opened(scale):
    @torch._dynamo.allow_in_graph
    def times(x):
        return x * scale

    return lambda x: times(x)


def test_an_opened_function_is_told_by_what_it_holds():
    x, held = torch.ones(2), np.float32(2)
    doubled, again, tripled = (key_for(opened(n), x) for n in (2, 2, 3))
    assert doubled == again != tripled
    # What is no plain value may hide anything: never the same as any other.
    assert key_for(opened(held), x) != key_for(opened(held), x)


def test_keys_do_not_depend_on_names_or_weights():
    x = torch.ones(4, 4)
    other = Scaled(2.0)
    other.weight.data += 1
    assert key_for(Scaled(2.0), x) == key_for(other, x)

    def one(a, b):
        first = a * b
        return first + a

    def two(left, right):
        return left * right + left

    assert key_for(one, x, x + 1) == key_for(two, x, x + 1)


def test_an_edited_kernel_helper_is_another_key(tmp_path):
    package = Path(key.__file__).parents[1]
    for part in ("kernels", "ops", "regions"):
        shutil.copytree(package / part, tmp_path / part)
    before = key.digest_of_sources(tmp_path)
    assert before == key.digest_of_sources(package)
    helper = tmp_path / "kernels" / "tiles.py"
    helper.write_text(helper.read_text() + "# edited\n")
    key.digest_of_sources.cache_clear()
    assert key.digest_of_sources(tmp_path) != before
