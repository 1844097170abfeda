"""engram_gate against float64, its twin and the model: the gate's shape, rounding, bytes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dslearn import backend, ops
from dslearn.kernels import engram_gate as module
from dslearn.kernels.engram_gate import engram_gate
from dslearn.model.engram import gate_logits
from dslearn.ops.engram_gate import engram_gate as op
from dslearn.ops.engram_gate import reference
from dslearn.sim.rules import KernelError
from tests.support.kernels import bits, dma_bytes, recorded
from tests.support.streams import DTYPES, EPS, gated, wide
from tests.support.streams import engram as given_for

SIZES = [
    (1, 1, 6), (1, 4, 5120), (6, 4, 256), (3, 4, 17), (2, 3, 1), (33, 4, 33), (5, 8, 96),
    (2, 4, 1031),
]  # fmt: skip
SHUT, OPEN = 0.49975, 0.50025  # the gate where nothing agrees, by the sign of the zero


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_equals_double_precision(size, dtype):
    arguments = given_for(1, *size, dtype)
    (out, gate), (exact, sigmoid) = engram_gate(*arguments, EPS), gated(*arguments)
    assert out.dtype == dtype and gate.dtype == torch.float32
    assert np.abs(wide(gate) - sigmoid).max() < 2e-6
    step = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-22
    assert (np.abs(wide(out) - exact) <= step * np.abs(exact) + 1e-5).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_is_within_a_step_of_its_twin(dtype):
    arguments = given_for(2, 6, 4, 320, dtype)
    found, expected = engram_gate(*arguments, EPS), reference(*arguments, EPS)
    torch.testing.assert_close(found[1], expected[1], rtol=0, atol=1e-6)
    torch.testing.assert_close(found[0], expected[0], rtol=2.0**-7, atol=1e-5)
    assert (found[0] == expected[0]).float().mean() > (0.99 if dtype == torch.bfloat16 else 0.5)


def test_agrees_with_the_model():
    h, kv, weight = given_for(3, 6, 4, 96)
    logits = gate_logits(h, kv[:, : 4 * 96].unflatten(1, (4, 96)), weight, EPS)
    gate = engram_gate(h, kv, weight, EPS)[1]
    torch.testing.assert_close(gate, logits.sigmoid(), rtol=0, atol=1e-6)
    assert gate.std() > 0


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_key_that_is_the_stream_opens_the_gate_by_the_fourth_root_of_the_width(sign):
    h, kv, weight = given_for(4, 3, 4, 81)
    kv[:, : 4 * 81] = sign * h.flatten(1)
    gate = engram_gate(h, kv, torch.ones_like(weight), EPS)[1]
    assert gate.flatten().tolist() == pytest.approx([1 / (1 + math.exp(-sign * 3))] * 12, abs=1e-6)


def test_turning_the_weight_round_mirrors_the_gate():
    h, kv, weight = given_for(5, 3, 4, 64)
    gate, mirrored = (engram_gate(h, kv, w, EPS)[1] for w in (weight, -weight))
    torch.testing.assert_close(gate + mirrored, torch.ones(3, 4), rtol=0, atol=1e-6)
    assert gate.std() > 1e-3


def test_where_nothing_agrees_the_sign_of_zero_decides():
    h, kv, weight = given_for(6, 2, 4, 32)
    h[0], kv[1, : 4 * 32] = 0.0, 0.0
    gate = engram_gate(h, kv, weight, EPS)[1]
    assert gate.flatten().tolist() == pytest.approx([OPEN] * 8, abs=1e-6)


@pytest.mark.parametrize(("sign", "expected"), [(1.0, OPEN), (-1.0, SHUT)])
def test_small_agreements_count_as_a_millionth(sign, expected):
    h, kv, weight = given_for(7, 2, 4, 32)
    kv[:, : 4 * 32] = h.flatten(1)
    gate = engram_gate(h, kv, sign * 1e-9 * torch.ones_like(weight), EPS)[1]
    assert gate.flatten().tolist() == pytest.approx([expected] * 8, abs=1e-7)


def test_the_result_is_rounded_once():
    h, kv, weight = given_for(11, 6, 4, 130, torch.bfloat16)
    out, gate = engram_gate(h, kv, weight, EPS)
    in_fp32, same = engram_gate(h.float(), kv.float(), weight, EPS)
    assert torch.equal(bits(out), bits(in_fp32.bfloat16())) and torch.equal(gate, same)
    assert not torch.equal(out.float(), in_fp32)


def test_the_value_comes_last_and_every_stream_takes_it():
    h, kv, weight = given_for(12, 3, 4, 24)
    out, gate = engram_gate(h, kv, weight, EPS)
    taken = gate[:, :, None] * kv[:, None, 4 * 24 :]
    assert torch.equal(out, h + taken) and taken.abs().max() > 0.1


def test_a_key_moves_only_the_gate_of_its_stream():
    h, kv, weight = given_for(13, 3, 4, 24)
    before = engram_gate(h, kv, weight, EPS)[1]
    kv[:, 24:48] *= -1
    after = engram_gate(h, kv, weight, EPS)[1]
    assert (before == after).all(0).tolist() == [True, False, True, True]


def test_a_power_of_two_in_stream_or_key_changes_no_gate():
    h, kv, weight = given_for(14, 3, 4, 24)
    before = engram_gate(h, kv, weight, EPS)[1]
    louder = engram_gate(h * 1024, kv / 64, weight, EPS)[1]
    torch.testing.assert_close(before, louder, rtol=0, atol=1e-6)
    assert before.std() > 0


def test_eps_counts():
    h, kv, weight = given_for(15, 3, 4, 24)
    expected = reference(h, kv, weight, 0.5)[1]
    gate = engram_gate(h, kv, weight, 0.5)[1]
    torch.testing.assert_close(gate, expected, rtol=0, atol=1e-6)
    assert (gate - engram_gate(h, kv, weight, EPS)[1]).abs().max() > 1e-3


@pytest.mark.parametrize("width", [48, 67])
def test_rows_that_do_not_fit_a_tile_are_read_twice(monkeypatch, width):
    arguments = given_for(21, 3, 4, width, torch.bfloat16)
    whole = engram_gate(*arguments, EPS)
    monkeypatch.setattr(module, "LANES", 2)
    monkeypatch.setattr(module, "WIDEST", 40)  # ten columns of four streams
    cut = engram_gate(*arguments, EPS)
    torch.testing.assert_close(cut[1], whole[1], rtol=0, atol=1e-6)
    assert (cut[0] == whole[0]).float().mean() > 0.99 and whole[0].float().abs().max() > 0


def test_everything_moves_once_but_the_weight():
    arguments = given_for(22, 8, 4, 640, torch.bfloat16)
    cores = recorded(lambda: engram_gate[2](*arguments, EPS))
    read = sum(dma_bytes(core)[0] for core in cores)
    weight = 8 * 4 * 640 * 4  # a copy in the lanes of every row: nothing crosses lanes
    assert read == 8 * (4 + 5) * 640 * 2 + weight
    assert sum(dma_bytes(core)[1] for core in cores) == 8 * 4 * 640 * 2 + 8 * 4 * 4


def test_the_tensor_engine_only_transposes():
    (core,) = recorded(lambda: engram_gate(*given_for(23, 3, 4, 64), EPS))
    assert [one.name for one in core if one.engine == "tensor"] == ["nc_transpose"] * 4


def test_the_operation_takes_dead_rows_as_bool():
    h, kv, weight = given_for(24, 3, 4, 12)
    dead = torch.tensor([False, True, False])
    with backend.use("sim"), ops.collect() as taken:
        out, gate = op(h, kv, weight, EPS, dead)
        plain = op(h, kv, weight, EPS)
    assert str(taken) == "engram_gate: kernel 2"
    expected = reference(h, kv, weight, EPS, dead)
    torch.testing.assert_close(out, expected[0], rtol=1e-6, atol=1e-6)
    assert not gate[1].any() and torch.equal(plain[1][0], gate[0])


def test_the_operation_is_its_twin_on_the_cpu():
    arguments = given_for(25, 3, 4, 12)
    with backend.use("cpu"):
        found = op(*arguments, EPS, torch.tensor([True, False, False]))
    expected = reference(*arguments, EPS, torch.tensor([1, 0, 0]).byte())
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_no_rows_are_none_and_other_rows_are_refused():
    h, kv, weight = given_for(26, 3, 4, 12)
    with backend.use("sim"):
        assert op(h[:0], kv[:0], weight, EPS)[0].shape == (0, 4, 12)
        with pytest.raises(KernelError):
            op(h, kv[:2], weight, EPS)
        with pytest.raises(KernelError):
            op(h, kv, weight, EPS, torch.zeros(2).bool())
    with pytest.raises(KernelError):
        engram_gate(h, kv[:, :50].contiguous(), weight, EPS)


def test_arguments_stay_as_they_are():
    arguments = given_for(27, 3, 4, 40)
    before = [a.clone() for a in arguments]
    engram_gate(*arguments, EPS)
    assert all(torch.equal(a, b) for a, b in zip(arguments, before, strict=True))
