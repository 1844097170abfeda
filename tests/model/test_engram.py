"""Engram layers: the gate at its ends, rows from either storage, and where the values go."""

from __future__ import annotations

import math

import pytest
import torch

from dslearn.model.engram import Table, gate_logits
from tests.support.models import build, prompt, small_config
from tests.support.random_model import token_map

RAW = small_config(engram_n_heads=2, engram_head_dim=64)


def one_gate(h: list[float], key: list[float], eps: float = 1e-20) -> float:
    shape = (1, 1, 1, len(h))
    values = (torch.tensor(v).view(shape) for v in (h, key))
    return float(torch.sigmoid(gate_logits(*values, torch.ones(1, len(h)), eps)))


def test_the_sign_is_copied_even_where_the_product_is_next_to_nothing():
    """V4.1 takes the sign by copysign; sign(0) = 0 would give exactly one half at zero."""
    half = 1 / (1 + math.exp(-1e-3)), 1 / (1 + math.exp(1e-3))
    assert abs(one_gate([1.0, 0.0], [0.0, 1.0]) - half[0]) < 1e-6 and half[0] > 0.5002
    assert abs(one_gate([1.0, 1e-9], [0.0, 1.0]) - half[0]) < 1e-6
    assert abs(one_gate([1.0, -1e-9], [0.0, 1.0]) - half[1]) < 1e-6


def test_the_gate_of_known_vectors():
    """Cosine 1 of 4 dims: a = 4 * 4^-.5 = 2, gate = sigmoid(sqrt 2); opposite: of the minus."""
    x = [1.0, -2.0, 0.5, 3.0]
    assert abs(one_gate(x, x) - 1 / (1 + math.exp(-math.sqrt(2)))) < 1e-6
    assert abs(one_gate(x, [-v for v in x]) - 1 / (1 + math.exp(math.sqrt(2)))) < 1e-6
    assert abs(one_gate([1e-3 * v for v in x], x) - one_gate(x, x)) < 1e-6, "a direction only"


def test_a_zero_row_gives_a_finite_gate():
    assert abs(one_gate([0.0] * 4, [1.0] * 4) - 0.50025) < 1e-5
    assert abs(one_gate([0.0] * 4, [0.0] * 4) - 0.50025) < 1e-5


def test_a_layer_by_hand():
    """Rows, projection, one key per stream, one value for all of them."""
    model = build(RAW)
    layer, ids = model.layers[1], prompt(RAW, 7)
    seen: dict = {}
    model.layers[0].register_forward_hook(lambda _, args, out: seen.update(h=out[0]))
    trace: dict = {}
    model.forward(ids, trace=trace)
    engram, h = layer.engram, seen["h"].double()
    e = engram.embed.weight.double()[trace["layers"][1]["engram_ids"]].flatten(-2)
    kv = e @ engram.wkv.weight.double().T
    key, value = kv[..., : 3 * 32].unflatten(-1, (3, 32)), kv[..., 3 * 32 :]
    weight = engram.q_weight.double() * engram.k_weight.double()
    a = (h * weight * key).sum(-1) * 32**-0.5
    a = a / h.square().mean(-1).sqrt() / key.square().mean(-1).sqrt()
    gate = torch.sigmoid(torch.sign(a) * a.abs().sqrt())
    assert (trace["layers"][1]["engram_gates"] - gate).abs().max() < 1e-4
    want = h + gate.unsqueeze(-1) * value.unsqueeze(-2)
    assert (trace["layers"][1]["streams"] - want).abs().max() < 1e-4


def test_a_table_in_fp8_is_read_as_its_own_values():
    table = Table(9, 64)
    codes = torch.randint(0, 127, (9, 64), dtype=torch.uint8)
    scale = torch.randint(118, 134, (9, 2), dtype=torch.uint8)
    table.store_fp8(codes, scale)
    ids = torch.tensor([[8, 0], [3, 3]])
    want = codes[ids].view(torch.float8_e4m3fn).float()
    want = want * torch.exp2(scale[ids].float() - 127).repeat_interleave(32, -1)
    assert torch.equal(table(ids), want) and want.shape == (2, 2, 64)


@pytest.mark.parametrize("position", [3, 4, 5, 6, 7])
def test_a_token_reaches_three_tokens_ahead_through_the_hash(position):
    ids = prompt(RAW, 12, 4)
    other = ids.clone()
    mapping = token_map(RAW)
    other[0, 4] = next(t for t in range(64) if mapping[t] != mapping[int(ids[0, 4])])
    model, rows = build(RAW), []
    for tokens in (ids, other):
        trace: dict = {}
        model.forward(tokens, trace=trace)
        rows.append(trace["layers"][1]["engram_ids"][0, position])
    assert torch.equal(*rows) == (not 4 <= position <= 7)


def test_tokens_that_read_the_same_share_their_rows():
    mapping = token_map(RAW)
    twin = next(t for t in range(1, 64) if mapping[t] == mapping[t - 1])
    trace = [{}, {}]
    for tokens, into in zip((twin, twin - 1), trace, strict=True):
        build(RAW).forward(torch.tensor([[3, tokens, 9]]), trace=into)
    ids = [t["layers"][1]["engram_ids"] for t in trace]
    assert torch.equal(*ids)
