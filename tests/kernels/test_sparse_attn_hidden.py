"""What sparse_attn must not see: invalid indices, empty slots, NaN bytes, other queries' NaN."""

from __future__ import annotations

import pytest
import torch

from dslearn import backend
from dslearn.kernels.sparse_attn import sparse_attn
from dslearn.ops.sparse_attn import sparse_attn as op
from tests.support.attention import by_hand, case
from tests.support.kernels import bits


def attended(c):
    return sparse_attn[1](*c.columns())


def check_close(y, expected):
    expected = torch.as_tensor(expected)
    assert expected.abs().max() > 0.01
    torch.testing.assert_close(y.double(), expected.double(), rtol=0, atol=3e-6)


@pytest.mark.parametrize("invalid", [-1, -7, 13, 10_000_000])
def test_all_indices_invalid_is_the_window_alone(invalid):
    c = case(3, 2, 32, 8, 5)
    none = c.but(selected=torch.full_like(c.selected, invalid))
    assert torch.equal(attended(none), attended(c.but(entries=None, selected=None)))


def test_some_indices_invalid_are_left_out():
    c = case(2, 3, 64, 8, 6)
    holes = c.selected.clone()
    holes[0, 1], holes[1, 5], holes[1, 0] = -1, 15, 2_000_000
    c = c.but(selected=holes)
    check_close(attended(c), by_hand(c))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sink", [-1e4, 0.0, 1e4])
def test_a_query_without_keys_gives_zeros(dtype, sink):
    c = case(3, 2, 32, 8, 4, dtype=dtype)
    selected = c.selected.clone()
    selected[1] = -1
    c = c.but(position=torch.tensor([50, -1, 52]), selected=selected, sink=torch.full((2,), sink))
    y = attended(c)
    assert not y[1].any() and torch.equal(y.isnan(), torch.zeros_like(y, dtype=torch.bool))


@pytest.mark.parametrize("name", ["cpu", "sim"])
def test_no_entries_are_the_window_alone_and_no_window_the_entries_alone(name):
    c = case(2, 3, 32, 8, 4)
    near = c.but(entries=c.entries[:0])
    far = c.but(window=c.window[:0], held=c.held[:0])
    with backend.use(name):
        check_close(op(*near.arguments()), by_hand(c.but(entries=None, selected=None)))
        check_close(op(*far.arguments()), by_hand(far))
        none = c.but(q=c.q[:0], position=c.position[:0], selected=c.selected[:0])
        assert op(*none.arguments()).shape == (0, 3, 32)


def test_hidden_records_may_hold_anything():
    c = case(2, 3, 64, 8, 5)
    holes = c.selected.clone()
    holes[:, 0] = -1
    c = c.but(held=c.held.where(c.held != 45, -1), selected=holes)
    y = attended(c)
    window, entries = c.window.clone(), c.entries.clone()
    window[c.held < 0] = 255
    unused = [j for j in range(len(entries)) if j not in holes.flatten().tolist()]
    entries[unused] = 255
    assert 0 in unused, "the row that stands in for -1"
    assert torch.equal(bits(attended(c.but(window=window, entries=entries))), bits(y))


@pytest.mark.parametrize("kind", ["window", "compressed"])
def test_a_nan_record_reaches_those_who_see_it_and_no_other(kind):
    c = case(4, 2, 64, 8, 5)
    window, entries = c.window.clone(), c.entries.clone()
    if kind == "window":
        window[-1, 64] = 255  # one scale of the newest record: the last query alone sees it
        sees = torch.tensor([False, False, False, True])
    else:
        entries[c.selected[1, 2], 32] = 127
        sees = (c.selected == c.selected[1, 2]).any(1)
    y = attended(c.but(window=window, entries=entries))
    assert torch.equal(y.isnan().flatten(1).all(1), sees)
    assert torch.equal(y[~sees], attended(c)[~sees]) and not sees.all()
