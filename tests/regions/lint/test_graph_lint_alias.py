"""What the lint says of views of one storage is what torch's autograd makes of them."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd

from tests.support.graph_lint import broken


def views():
    """Pairs of views of one storage [4, 2, 8]."""
    pool = torch.zeros(4, 2, 8)
    flat, rows = pool.view(-1), pool.view(4, 16)
    wide = torch.zeros(4, 2, 4, 8)
    yield "layers of a token-major pool", wide[:, 0], wide[:, 1]
    yield "layers of a layer-major pool", wide[0], wide[1]
    yield "a pool and its layer", pool, pool[1]
    yield "overlapping rows", pool[:3], pool[1:]
    yield "columns side by side", rows[:, :8], rows[:, 8:]
    yield "columns that overlap", rows[:, :9], rows[:, 8:]
    yield "columns around the corner", rows[:3, 8:], flat[16:64].view(3, 16)[:, :8]
    yield "matrices of a pool", pool[:, 0], pool[:, 1]
    yield "neighbours", flat[:10], flat[10:30]
    yield "neighbours by one", flat[:11], flat[10:30]


@pytest.mark.parametrize(("name", "a", "b"), list(views()))
def test_aliased_views_are_those_that_autograd_rebuilds(name, a, b):
    def step(a, b):
        a.add_(1)
        return a.sum() + b.sum()

    def read_only(a, b):
        return a.sum() + b.sum()

    graphs = []

    def keep(module, inputs):
        graphs.append(module)
        return module.forward

    backend = aot_autograd(fw_compiler=keep, keep_inference_input_mutations=True)
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(step, backend=backend, fullgraph=True, dynamic=False)(a, b)
    rebuilt = any("as_strided" in str(node.target) for node in graphs[0].graph.nodes)
    assert ("aliased-views" in broken(step, a, b)) == rebuilt, name
    assert "aliased-views" not in broken(read_only, a, b)


def test_two_dtypes_on_one_storage_are_what_autograd_refuses():
    pool = torch.zeros(8, dtype=torch.int16)

    def step(a, b):
        a.add_(1)
        return b + 1

    backend = aot_autograd(fw_compiler=lambda module, inputs: module.forward)
    with torch.no_grad(), pytest.raises(Exception, match="views with different dtypes"):
        torch.compile(step, backend=backend, fullgraph=True)(pool.view(torch.uint8), pool)
    assert broken(step, pool.view(torch.uint8), pool) == ["storage-dtypes"]
