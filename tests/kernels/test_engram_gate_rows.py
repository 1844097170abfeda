"""engram_gate row by row: dead rows, neighbours, padding, NaN, two cores."""

from __future__ import annotations

import math

import pytest
import torch

from dslearn.kernels.engram_gate import engram_gate
from tests.support.kernels import bits
from tests.support.streams import EPS, padded_with_nan
from tests.support.streams import engram as given_for


def test_dead_rows_take_nothing():
    h, kv, weight = given_for(8, 5, 4, 40, torch.bfloat16)
    dead = torch.tensor([0, 1, 0, 1, 255]).byte()
    out, gate = engram_gate(h, kv, weight, EPS, dead)
    assert not gate[[1, 3, 4]].any() and (gate[[0, 2]] > 0).all()
    assert torch.equal(out[[1, 3, 4]], h[[1, 3, 4]]) and not torch.equal(out[0], h[0])


def test_living_rows_do_not_notice_the_dead():
    h, kv, weight = given_for(9, 5, 4, 40)
    without = engram_gate(h, kv, weight, EPS)
    none = engram_gate(h, kv, weight, EPS, torch.zeros(5).byte())
    some = engram_gate(h, kv, weight, EPS, torch.tensor([0, 1, 0, 0, 0]).byte())
    for one, two, three in zip(without, none, some, strict=True):
        assert torch.equal(bits(one), bits(two))
        assert torch.equal(bits(one[[0, 2, 3, 4]]), bits(three[[0, 2, 3, 4]]))


def test_a_dead_row_whose_gate_is_nan_is_closed_too():
    h, kv, weight = given_for(10, 2, 4, 40)
    kv[1, 3] = math.nan  # of a key
    out, gate = engram_gate(h, kv, weight, EPS, torch.tensor([0, 1]).byte())
    assert not gate[1].any() and torch.equal(out[1], h[1])
    assert engram_gate(h, kv, weight, EPS)[1][1, 0].isnan()


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 9, 33])
def test_two_cores_give_the_bytes_of_one(rows):
    arguments = given_for(16, rows, 4, 64, torch.bfloat16)
    one, two = (engram_gate[n](*arguments, EPS) for n in (1, 2))
    assert all(torch.equal(bits(a), bits(b)) for a, b in zip(one, two, strict=True))
    assert one[0].float().abs().max() > 0


def test_a_row_does_not_depend_on_its_neighbours():
    h, kv, weight = given_for(17, 9, 4, 96)
    whole = engram_gate(h, kv, weight, EPS)
    for row in (0, 3, 4, 8):
        alone = engram_gate(h[row : row + 1].clone(), kv[row : row + 1].clone(), weight, EPS)
        assert all(torch.equal(bits(a[0]), bits(b[row])) for a, b in zip(alone, whole, strict=True))


def test_a_batch_padded_from_three_to_eight_leaves_the_bytes_of_its_rows():
    h, kv, weight = given_for(18, 3, 4, 320, torch.bfloat16)
    more = engram_gate(padded_with_nan(h), padded_with_nan(kv), weight, EPS)
    for one, other in zip(engram_gate(h, kv, weight, EPS), more, strict=True):
        assert torch.equal(bits(one), bits(other[:3])) and other[3:].isnan().all()


def test_nan_stays_in_its_stream():
    h, kv, weight = given_for(19, 4, 4, 40)
    h[2, 1, 7] = math.nan
    out, gate = engram_gate(h, kv, weight, EPS)
    assert gate.isnan().nonzero().tolist() == [[2, 1]]
    assert out[2, 1].isnan().all() and out.isnan().sum() == 40


def test_nan_in_a_value_stays_in_its_column():
    h, kv, weight = given_for(20, 4, 4, 40)
    kv[1, 4 * 40 + 6] = math.nan
    out, gate = engram_gate(h, kv, weight, EPS)
    assert out.isnan().nonzero().tolist() == [[1, c, 6] for c in range(4)] and gate.isfinite().all()
