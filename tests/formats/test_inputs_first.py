"""Weights placed inputs first: every element is where the kernels look for it, padding is zero."""

from __future__ import annotations

import pytest
import torch

from dslearn.errors import FormatError
from dslearn.formats import inputs_first
from tests.support.weights import fp4, fp8, of_fp4

SIZES = [(1, 1), (64, 128), (200, 160), (33, 300), (320, 96)]


@pytest.mark.parametrize(("outputs", "inputs"), SIZES)
def test_every_code_is_at_its_place(outputs, inputs):
    codes, scale = fp8(1, outputs, inputs)
    wide, grid = inputs_first.fp8(codes, scale)
    assert torch.equal(wide[:inputs, :outputs], codes.T) and not wide[inputs:].any()
    assert not wide[:, outputs:].any() and wide.shape[0] % 128 == wide.shape[1] % 64 == 0
    for parts in (1, 2):
        placed, scales = (
            inputs_first.by_part(wide, parts),
            inputs_first.scale_by_part(grid, parts),
        )
        width = wide.shape[1] // parts
        for n, k in [(0, 0), (outputs - 1, inputs - 1), (outputs // 2, inputs // 3)]:
            p, j = k % 128, k // 128
            assert placed[n // width, p, j, n % width] == codes[n, k]
            assert scales[n // width, p // 32, n % width // 32, j] == scale[n // 32, k // 32]


def test_padded_tiles_have_scale_one():
    _, grid = inputs_first.fp8(*fp8(2, 33, 33))
    assert grid.shape == (4, 2) and grid[2:].unique().tolist() == [127]


def test_turns():
    a, b = torch.zeros(64, 3), torch.ones(64, 3)
    both = inputs_first.in_turns(a, b)
    assert both[:, 0].reshape(4, 32).mean(1).tolist() == [0, 1, 0, 1]
    assert inputs_first.in_turns(a, b, 1)[:4, 0].tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(("inner", "hidden"), [(64, 32), (96, 160), (256, 300)])
def test_a_shared_expert_holds_its_three_weights(inner, hidden):
    w1, w3, w2 = fp8(1, inner, hidden), fp8(2, inner, hidden), fp8(3, hidden, inner)
    gate_up, scale, down, down_scale = inputs_first.shared_expert(w1, w3, w2)
    half = gate_up.shape[3] // 2
    assert gate_up.shape[:2] == (2, 128) and down.shape[2] % 256 == 0 and half % 32 == 0
    for i, k in [(0, 0), (inner - 1, hidden - 1), (inner // 3, hidden // 2)]:
        part, at = i // half, i % half
        for plane, (codes, grid) in ((0, w1), (1, w3)):
            turn = at // 32 * 64 + plane * 32 + at % 32
            assert gate_up[part, k % 128, k // 128, turn] == codes[i, k]
            assert scale[part, k % 128 // 32, turn // 32, k // 128] == grid[i // 32, k // 32]
        assert down[part, at, k] == w2[0][k, i]
        assert down_scale[part, at // 32, k // 32] == w2[1][k // 32, i // 32]
    assert gate_up.count_nonzero() == sum(w[0].count_nonzero() for w in (w1, w3))
    assert down.count_nonzero() == w2[0].count_nonzero()


@pytest.mark.parametrize(("inner", "hidden"), [(64, 32), (96, 160)])
def test_a_routed_expert_holds_its_three_weights_exactly(inner, hidden):
    w1, w3, w2 = fp4(1, inner, hidden), fp4(2, inner, hidden), fp4(3, hidden, inner)
    gate_up, factor, down, down_factor = inputs_first.routed_expert(w1, w3, w2)
    values = gate_up.view(torch.float8_e4m3fn).double()
    assert values.abs().max() <= 240
    half = gate_up.shape[3] // 2
    for plane, weight in ((0, of_fp4(w1)), (1, of_fp4(w3))):
        turns = values.permute(0, 3, 2, 1).reshape(2, half // 32, 2, 32, -1)[:, :, plane]
        wide = turns.reshape(2 * half, -1)[:inner, :hidden]
        assert torch.equal(wide * factor.reshape(-1, 2)[:inner, plane : plane + 1], weight)
    wide = down.view(torch.float8_e4m3fn).double().flatten(0, 1)
    factors = down_factor.T.reshape(-1)
    assert torch.equal((wide * factors)[:inner, :hidden].T, of_fp4(w2))


def test_what_cannot_be_placed_is_refused():
    codes, scale = fp8(1, 64, 64)
    with pytest.raises(FormatError, match="must be"):
        inputs_first.fp8(codes, scale[:1])
    codes[3, 5] = 0x78
    with pytest.raises(FormatError, match="infinity or NaN"):
        inputs_first.fp8(codes, scale)
    codes[3, 5] = 0x77
    assert inputs_first.fp8(codes, scale)[0][5, 3] == 0x77
    far = fp4(2, 64, 64)
    far[1][7] = torch.tensor([100, 120], dtype=torch.uint8)
    with pytest.raises(FormatError, match="apart"):
        inputs_first.routed_expert(far, fp4(3, 64, 64), fp4(4, 64, 64))
