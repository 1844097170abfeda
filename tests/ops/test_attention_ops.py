"""Operations of attention and streams: torch's own checks, whole graphs, and calls without rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dslearn import backend, ops
from dslearn.formats.place import place_fp8
from dslearn.ops.compress_pool import compress_pool
from dslearn.ops.engram_gate import engram_gate
from dslearn.ops.hc_attn_out import hc_attn_out
from dslearn.ops.hc_collapse import hc_collapse
from dslearn.ops.hc_expand import hc_expand
from dslearn.ops.hc_mixes import hc_mixes
from dslearn.ops.index_score import index_score
from dslearn.ops.index_topk import candidate_blocks, index_topk
from dslearn.ops.kv_store import kv_store
from dslearn.ops.rope import rope
from dslearn.ops.sparse_attn import sparse_attn
from tests.support import linear, records, streams
from tests.support.attention import case
from tests.support.kernels import matrix

EPS = 1e-20
Call = tuple[Any, ...]


def calls():
    """(operation, arguments, places of those with rows) of small calls."""
    near = case(2, 3, 32, 8, 5)
    yield sparse_attn, near.arguments(), (0, 1, 8)
    yield sparse_attn, near.but(entries=None, selected=None).arguments()[:7], (0, 1)
    scores, counts = matrix(1, 3, 20), torch.tensor([20, 7, 0])
    allowed = torch.tensor([[1, 0, 0, 1, 0]] * 3, dtype=torch.uint8)
    q, weights = matrix(2, 6, 32).view(3, 2, 32), matrix(3, 3, 2)
    yield index_score, (q, weights, records.packed(4, 5, 32, "index"), True, False), (0, 1)
    yield index_topk, (scores, counts, 4), (0, 1)
    yield index_topk, (scores, counts, 4, allowed), (0, 1, 3)
    yield candidate_blocks, (scores, counts, 4, 2), (0, 1)
    pool = torch.zeros(6, 33, dtype=torch.uint8)
    slots, valid = torch.tensor([4, 0, 5]), torch.tensor([True, True, False])
    yield kv_store, (matrix(5, 3, 32), slots, valid, pool, "window"), (0, 1, 2)
    turns = matrix(6, 3, 16), matrix(7, 3, 16)
    yield rope, (matrix(8, 6, 32).view(3, 2, 32), *turns, True), (0, 1, 2)
    u, g = (matrix(9 + i, 10, 8).view(2, 5, 8) for i in range(2))
    at, state = (torch.tensor([4, 7]), torch.tensor([5, 2])), (matrix(11, 2, 8), matrix(12, 2, 8))
    yield compress_pool, (u, torch.ones(8), EPS, False), (0,)
    yield compress_pool, (u, torch.ones(8), EPS, True, g, *at, *state), (0, 4, 5, 6, 7, 8)
    h, post, comb = streams.streams(1, 3, 4, 12), matrix(13, 3, 4), streams.numbers(2, 3, 4, 4)
    yield hc_collapse, (h, post), (0, 1)
    yield hc_expand, (matrix(14, 3, 12), h, post, comb), (0, 1, 2, 3)
    mixing = streams.placed(streams.parameters(3, 4, 12))
    yield hc_mixes, (h, *mixing, EPS, 1e-6), (0,)
    placed = place_fp8(*linear.fp8(12, 64, 32, whole=False), 32)
    yield hc_attn_out, (linear.rows(3, 64), *placed, h, post, comb), (0, 3, 4, 5)
    dead = torch.tensor([False, True, False])
    yield engram_gate, (*streams.engram(4, 3, 4, 12), EPS, dead), (0, 1, 4)


CALLS = list(calls())
IDS = [f"{op.name} of {len(arguments)}" for op, arguments, _ in CALLS]
each_call = pytest.mark.parametrize(("op", "arguments", "rows"), CALLS, ids=IDS)
each_backend = pytest.mark.parametrize("name", ["cpu", "sim"])


def fresh(arguments: Call) -> Call:
    return tuple(a.clone() if isinstance(a, torch.Tensor) else a for a in arguments)


def tensors(result: Any) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else list(result or ())


@each_call
@each_backend
def test_schema_and_fake_agree_with_the_result(op, arguments, rows, name):
    with backend.use(name):
        done = torch.library.opcheck(
            op.overload, fresh(arguments), test_utils=("test_schema", "test_faketensor")
        )
    assert set(done.values()) == {"SUCCESS"}


@each_call
@each_backend
def test_a_whole_graph_gives_and_writes_the_bytes_of_eager(op, arguments, rows, name):
    torch._dynamo.reset()
    compiled = torch.compile(lambda *given: op(*given), fullgraph=True, backend="aot_eager")
    eagerly, in_graph = fresh(arguments), fresh(arguments)
    with backend.use(name), ops.collect() as taken:
        eager, graph = tensors(op(*eagerly)), tensors(compiled(*in_graph))
    path = "kernel" if name == "sim" else "twin"
    assert taken.counts() == {op.name: {path: 2}}
    for a, b in zip((*eager, *eagerly), (*graph, *in_graph), strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
    written = [eagerly[i] for i in op.written if i < len(arguments)]
    assert any(t.any() for t in (*eager, *written))


@each_call
@each_backend
def test_without_rows_nothing_comes_out_and_nothing_is_written(op, arguments, rows, name):
    given = [a[:0] if i in rows else a for i, a in enumerate(fresh(arguments))]
    with backend.use(name):
        found = tensors(op(*given))
    assert all(t.shape[0] == 0 for t in found)
    for i, (before, after) in enumerate(zip(arguments, given, strict=True)):
        if isinstance(after, torch.Tensor) and i not in rows:
            assert torch.equal(before, after)
