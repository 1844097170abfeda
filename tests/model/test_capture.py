"""Modules as graphs: one graph each, what eager gives, one for all layers, weights as inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import dslearn
from dslearn import backend
from dslearn.model import chip, listed
from dslearn.model.hyper import collapse, expand
from dslearn.model.loading import load_model
from tests.support.captured import Graphs
from tests.support.models import build, small_config

TINY = Path(dslearn.__file__).parent / "data" / "tiny"
LAYERS = [1, 4]  # both have an Engram
ROWS = [1, 3]
SUM = 2e-6  # of the largest value: a product of other rows or outputs may sum in another order
each_backend = pytest.mark.parametrize("name", ["cpu", "sim"])


def normal(seed, *shape):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape, np.float32))


def streams(rows):
    return normal(rows, rows, 4, 256)


def sublayer(layer, h):
    pre, post, comb = layer.hc_ffn(h)
    x = layer.ffn_norm(collapse(h, pre, layer.arith))
    return expand(x, h, post, comb, layer.arith)


def route(layer, h):
    return layer.ffn.gate(h[:, 0], None)


def shared(layer, h):
    return layer.ffn.shared_experts(h[:, 0])


def experts(layer, h):
    return layer.ffn(h[:, 0])


def engram(layer, h):
    rows = layer.engram.wkv.prepare(h[:, :2].flatten(1)[:, : layer.engram.wkv.weight.shape[1]])
    return layer.engram(h, rows, torch.arange(len(h)) % 2 == 1)


CALLS = [sublayer, route, shared, experts, engram]


@pytest.fixture(scope="module")
def tiny():
    return load_model(TINY)


def values(result):
    return result if isinstance(result, tuple) else (result,)


def check_close(got, want, fraction):
    """Results, or tuples of them, that differ by a fraction of the largest value at most."""
    for a, b in zip(values(got), values(want), strict=True):
        assert a.shape == b.shape and b.any()
        assert float((a.double() - b.double()).abs().max()) <= fraction * float(b.abs().max())


@each_backend
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_a_graph_gives_what_eager_gives_and_serves_both_layers(tiny, call, rows, name):
    h, graphs = streams(rows), Graphs(call)
    fraction = SUM if call in (shared, experts) else 0.0  # eager joins products, or splits rows
    with backend.use(name):
        chip.prepare(tiny)
        for i in LAYERS:
            check_close(graphs(tiny.layers[i], h), call(tiny.layers[i], h), fraction)
    assert len(graphs.made) == 1, "the layers share it: weights are its inputs"


def test_a_graph_of_the_other_backend_is_another(tiny):
    h, graphs = streams(2), Graphs(sublayer)
    found = {}
    for name in ("cpu", "sim", "cpu"):
        with backend.use(name):
            chip.prepare(tiny)
            graphs(tiny.layers[0], h)
            found[name] = len(graphs.made)
    assert found == {"cpu": 1, "sim": 2} or found == {"cpu": 2, "sim": 2}
    assert "dslearn.sinkhorn.default" in graphs.operations(0)
    assert "dslearn.hc_mixes.default" in graphs.operations(1)


@each_backend
@pytest.mark.parametrize("how", ["parameter", "data", "in place"])
def test_a_replaced_weight_is_noticed_by_the_same_graph(how, name):
    layer, h = load_model(TINY).layers[0], streams(2)
    one, other = layer.ffn.shared_experts.w3, layer.ffn.shared_experts.w1
    new = other.weight.detach().clone()
    graphs = Graphs(shared)
    with backend.use(name):
        chip.prepare(layer)
        before = graphs(layer, h)
        if how == "parameter":
            one.weight = torch.nn.Parameter(new, requires_grad=False)
        elif how == "data":
            one.weight.data = new
        else:
            one.weight.copy_(new)
        chip.prepare(layer)
        after = graphs(layer, h)
        check_close(after, shared(layer, h), SUM)
    assert len(graphs.made) == 1 and not torch.allclose(before, after, atol=1e-3)


def test_a_graph_for_kernels_wants_placed_weights():
    layer, graphs = load_model(TINY).layers[0], Graphs(shared)
    with backend.use("sim"):
        with pytest.raises(Exception, match=r"call dslearn.model.chip.prepare\(model\)"):
            graphs(layer, streams(1))
        chip.prepare(layer)
        assert graphs(layer, streams(1)).any()


@each_backend
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("kind", ["plain", "mixed"])
def test_experts_of_any_storage_are_captured(kind, rows, name):
    layer = build(small_config()).layers[0]
    if kind == "mixed":
        layer.ffn.experts[1].w1.stored_quantised = True
        layer.ffn.experts[1].w1.weight.copy_((4 * layer.ffn.experts[1].w1.weight).round() / 8)
    h, graphs = normal(rows, rows, 3, 32), Graphs(experts)
    with backend.use(name):
        chip.prepare(layer)
        check_close(graphs(layer, h), experts(layer, h), SUM)
    assert len(graphs.made) == 1


@pytest.mark.parametrize(("rows", "slots"), [(1, 2), (2, 4), (3, 5), (9, 5)])
def test_the_list_names_each_expert_in_use_once(rows, slots):
    """Two experts per row of five: a graph has as many slots as rows can fill, never more."""
    rng = np.random.default_rng(rows)
    ids = torch.from_numpy(np.stack([rng.permutation(5)[:2] for _ in range(rows)]))
    weights = normal(rows, rows, 2)
    weights[0, 0] = 0.0  # chosen with weight 0 is chosen
    order, used, shares = listed.active(ids, weights, 5)
    names = sorted(set(ids.flatten().tolist()))
    assert order.dtype is torch.int32 and order.shape == (slots, 1) and int(used) == len(names)
    assert order[: len(names), 0].tolist() == names and len(set(order[:, 0].tolist())) == slots
    for slot, e in enumerate(order[:, 0].tolist()):
        want = (torch.where(ids == e, weights, 0.0)).sum(1)
        assert torch.equal(shares[slot], want)
