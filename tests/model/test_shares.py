"""Attention shares in a trace: what somebody who looks on sees is what the layer computed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import dslearn
from dslearn.model.arith import Arith
from dslearn.model.attention import attend, shares
from dslearn.numerics import Numerics


def test_shares_times_keys_are_the_output() -> None:
    torch.manual_seed(0)
    q, keys, sink = torch.randn(2, 3, 4, 32), torch.randn(2, 3, 9, 32), torch.randn(4)
    hidden = torch.rand(2, 3, 9) < 0.4
    hidden[0, 0] = True  # a query without keys: all goes to the sink
    keys[hidden] = torch.nan
    taken = shares(q, keys, hidden, sink)
    assert torch.equal(taken[0, 0, :, -1], torch.ones(4))
    torch.testing.assert_close(taken.sum(-1), torch.ones(2, 3, 4))
    values = taken[..., :-1] @ keys.nan_to_num()
    torch.testing.assert_close(values, attend(q, keys, hidden, sink, Arith(Numerics())))


@pytest.mark.parametrize("tokens", [1, 5])
def test_tiny_tells_its_shares_when_asked(tokens: int) -> None:
    model = dslearn.load("tiny").model
    ids = torch.arange(40).view(1, -1)
    plain, watched = model.new_state(max_len=64), model.new_state(max_len=64)
    for state in (plain, watched):
        model.forward(ids, state)
    trace: dict[str, Any] = {"shares": True}
    logits = model.forward(torch.full((1, tokens), 7), watched, trace=trace)
    torch.testing.assert_close(logits, model.forward(torch.full((1, tokens), 7), plain))
    for layer in trace["layers"]:
        entries = 0 if layer["topk"] is None else layer["topk"].shape[-1]
        heads, window = model.cfg.num_attention_heads, model.cfg.sliding_window
        assert layer["shares"].shape == (1, tokens, heads, window + entries + 1)
        if entries:
            none = layer["topk"] < 0
            assert not layer["shares"][..., window:-1].masked_select(none.unsqueeze(2)).any()
