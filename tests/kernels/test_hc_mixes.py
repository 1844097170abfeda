"""hc_mixes against float64, its twin and the model: projection, gates, Sinkhorn, rows, cores."""

from __future__ import annotations

import math
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dslearn import backend, ops
from dslearn.kernels import hc_mixes as module
from dslearn.kernels.hc_mixes import hc_mixes
from dslearn.model.arith import Arith
from dslearn.model.hyper import HyperConnection
from dslearn.numerics import Numerics
from dslearn.ops.hc_mixes import hc_mixes as op
from dslearn.ops.hc_mixes import place, reference
from dslearn.sim.rules import KernelError
from tests.support import streams as st
from tests.support.kernels import bits, dma_bytes, recorded
from tests.support.streams import DTYPES, EPS, HC_EPS, check_mixes, mixed

SIZES = [
    (1, 1, 6), (1, 4, 5120), (6, 4, 256), (3, 4, 17), (2, 3, 1), (130, 4, 33), (5, 8, 96),
]  # fmt: skip


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_equals_double_precision(size, dtype):
    h, parts = st.streams(1, *size, dtype), st.parameters(2, *size[1:])
    check_mixes(mixed(h, parts), st.mixes(h, parts))
    check_mixes(reference(h, *st.placed(parts), EPS, HC_EPS), st.mixes(h, parts), 4e-6)


def test_norm_eps_is_added_to_the_mean_of_squares():
    h, parts = st.streams(9, 3, 4, 40) * 1e-3, st.parameters(10, 4, 40)
    found = mixed(h, parts, norm_eps=1e-6)
    expected = reference(h, *st.placed(parts), 1e-6, HC_EPS)
    check_mixes(found, [st.wide(e) for e in expected])
    assert (found[0] - mixed(h, parts)[0]).abs().max() > 1e-3


@pytest.mark.parametrize("power", [-40, 30])
def test_a_power_of_two_in_a_row_changes_nothing(power):
    h, parts = st.streams(11, 3, 4, 40), st.parameters(12, 4, 40)
    small, usual = mixed(h * 2.0**power, parts, norm_eps=0.0), mixed(h, parts, norm_eps=0.0)
    for one, other in zip(small, usual, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
        assert one.std() > 0


def test_a_row_of_zeros_gives_the_base():
    h, (fn, base, scale) = st.streams(13, 3, 4, 40), st.parameters(14, 4, 40)
    h[1] = 0.0
    pre, post, comb = mixed(h, (fn, base, scale))
    exact = st.balanced(st.wide(base[8:]).reshape(4, 4))
    assert np.abs(st.wide(comb[1]) - exact).max() < 1e-6
    assert np.abs(st.wide(pre[1]) - st.sigmoid(st.wide(base[:4])) - HC_EPS).max() < 1e-7
    assert np.abs(st.wide(post[1]) - 2 * st.sigmoid(st.wide(base[4:8]))).max() < 2e-7


@pytest.mark.parametrize("group", [0, 1, 2])
def test_each_scale_moves_its_own_group(group):
    h, (fn, base, scale) = st.streams(15, 3, 4, 40), st.parameters(16, 4, 40)
    other = scale.clone()
    other[group] *= 2
    before, after = mixed(h, (fn, base, scale)), mixed(h, (fn, base, other))
    same = [torch.equal(one, two) for one, two in zip(before, after, strict=True)]
    assert same == [g != group for g in range(3)]


def test_gates_reach_their_ends():
    base = torch.cat([torch.tensor([-200.0, 200.0] * 4), torch.zeros(16)])
    pre, post, comb = mixed(torch.zeros(1, 4, 8), (torch.zeros(24, 32), base, torch.ones(3)))
    assert pre[0].tolist() == pytest.approx([HC_EPS, 1 + HC_EPS] * 2, abs=1e-7)
    assert post[0].tolist() == [0.0, 2.0] * 2 and (comb - 0.25).abs().max() < 1e-6


def test_bf16_streams_are_projected_as_they_are():
    h, parts = st.streams(17, 5, 4, 72, torch.bfloat16), st.parameters(18, 4, 72)
    for one, other in zip(mixed(h, parts), mixed(h.float(), parts), strict=True):
        assert torch.equal(bits(one), bits(other)) and one.std() > 0


def test_the_statistic_is_one_over_all_streams():
    h, parts = st.streams(19, 1, 4, 40), st.parameters(20, 4, 40)
    h[:, 3] *= 100
    check_mixes(mixed(h, parts), st.mixes(h, parts))
    alone = st.mixes(h / h.square().mean(2, keepdim=True).sqrt(), parts)
    assert np.abs(alone[0] - st.wide(mixed(h, parts)[0])).max() > 1e-2


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 129])
def test_two_cores_give_the_bytes_of_one(rows):
    h, parts = st.streams(21, rows, 4, 24, torch.bfloat16), st.placed(st.parameters(22, 4, 24))
    one, two = (hc_mixes[n](h, *parts, EPS, HC_EPS, 3) for n in (1, 2))
    assert all(torch.equal(bits(a), bits(b)) for a, b in zip(one, two, strict=True))
    assert one[2].std() > 0


def test_a_row_does_not_depend_on_its_neighbours():
    h, parts = st.streams(23, 130, 4, 24), st.parameters(24, 4, 24)
    whole = mixed(h, parts, iterations=3)
    for row in (0, 64, 127, 129):
        alone = mixed(h[row : row + 1].clone(), parts, iterations=3)
        assert all(torch.equal(a[0], b[row]) for a, b in zip(alone, whole, strict=True))


def test_a_batch_padded_from_three_to_eight_leaves_the_bytes_of_its_rows():
    h, parts = st.streams(25, 3, 4, 320, torch.bfloat16), st.parameters(26, 4, 320)
    more = mixed(st.padded_with_nan(h), parts)
    for one, other in zip(mixed(h, parts), more, strict=True):
        assert torch.equal(bits(one), bits(other[:3])) and other[3:].isnan().all()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nan_and_inf_stay_in_their_row(value):
    h, parts = st.streams(27, 4, 4, 40), st.parameters(28, 4, 40)
    clean = mixed(h, parts)
    h[2, 1, 7] = value
    warns = pytest.warns(UserWarning, match="not valid")  # rsqrt(inf)
    with warns if value == math.inf else nullcontext():
        found = mixed(h, parts)
    for one, other in zip(found, clean, strict=True):
        assert one[2].isnan().all() and torch.equal(one[[0, 1, 3]], other[[0, 1, 3]])


def test_rows_that_do_not_fit_together_go_in_blocks(monkeypatch):
    h, parts = st.streams(29, 9, 4, 40), st.parameters(30, 4, 40)
    whole = mixed(h, parts)
    monkeypatch.setattr(module, "ROOM", 40)  # bytes: two rows of two runs
    monkeypatch.setattr(module, "PIECE", 100)  # one step of fn at a time
    cut = recorded(lambda: mixed(h, parts))
    loads = [one for one in cut[0] if one.name == "dma_copy" and one.inputs[0].shape[-1] == 24]
    assert len(loads) > 8, "several blocks, several pieces of fn each"
    assert all(torch.equal(a, b) for a, b in zip(mixed(h, parts), whole, strict=True))


@pytest.mark.parametrize("inputs", [1, 127, 128, 129, 1000])
def test_fn_is_placed_in_runs(inputs):
    fn = torch.arange(3.0 * inputs).view(3, inputs) + 1
    lanes = place(fn)
    steps = -(-inputs // 128)
    assert lanes.shape == (128, steps, 3) and lanes.is_contiguous()
    assert torch.equal(lanes.flatten(0, 1)[:inputs].T, fn)
    assert not lanes.flatten(0, 1)[inputs:].any()


def test_fn_is_read_once_by_each_core():
    h, parts = st.streams(31, 6, 4, 640, torch.bfloat16), st.placed(st.parameters(32, 4, 640))
    cores = recorded(lambda: hc_mixes[2](h, *parts, EPS, HC_EPS, 2))
    read = sum(dma_bytes(core)[0] for core in cores)
    rows = 6 * (24 + 3) * 4  # base and scale, in every row
    assert read == 2 * parts[0].numel() * 4 + h.numel() * 2 + rows
    assert sum(dma_bytes(core)[1] for core in cores) == 6 * 24 * 4


def test_agrees_with_the_model():
    cfg = SimpleNamespace(
        hidden_size=40, hc_mult=4, hc_sinkhorn_iters=20, hc_eps=HC_EPS, rms_norm_eps=EPS
    )
    layer = HyperConnection(cfg, Arith(Numerics()))
    h, parts = st.streams(35, 6, 4, 40), st.parameters(36, 4, 40)
    for name, part in zip(("fn", "base", "scale"), parts, strict=True):
        getattr(layer, name).data = part
    expected = layer.requires_grad_(False)(h)
    check_mixes(mixed(h, parts), [st.wide(e) for e in expected])


def test_the_operation_takes_the_kernel_on_the_simulator_and_the_twin_elsewhere():
    h, parts = st.streams(37, 2, 4, 12), st.placed(st.parameters(38, 4, 12))
    with backend.use("sim"), ops.collect() as taken:
        found = op(h, *parts, EPS, HC_EPS)
    assert str(taken) == "hc_mixes: kernel 1"
    with backend.use("cpu"):
        check_mixes(found, [st.wide(e) for e in op(h, *parts, EPS, HC_EPS)])


def test_no_rows_are_none():
    parts = st.placed(st.parameters(39, 4, 8))
    with backend.use("sim"):
        shapes = [tuple(x.shape) for x in op(torch.zeros(0, 4, 8), *parts, EPS, HC_EPS)]
    assert shapes == [(0, 4), (0, 4), (0, 4, 4)]


def test_what_cannot_be_is_refused():
    h, (fn, base, scale) = st.streams(40, 2, 4, 40), st.placed(st.parameters(41, 4, 40))
    with pytest.raises(AssertionError, match=r"S \(S \+ 2\)"):
        hc_mixes(h, fn[:, :, :23].contiguous(), base[:23], scale, EPS, HC_EPS)
    with pytest.raises(AssertionError, match="ceil"):
        hc_mixes(h, fn[:, :1].contiguous(), base, scale, EPS, HC_EPS)
    with backend.use("sim"), pytest.raises(KernelError):
        op(h, fn.bfloat16(), base, scale, EPS, HC_EPS)
    assert hc_mixes(h, fn, base, scale, EPS, HC_EPS)[0].shape == (2, 4)


def test_arguments_stay_as_they_are():
    arguments = (st.streams(42, 3, 4, 40), *st.placed(st.parameters(43, 4, 40)))
    before = [a.clone() for a in arguments]
    hc_mixes(*arguments, EPS, HC_EPS)
    assert all(torch.equal(a, b) for a, b in zip(arguments, before, strict=True))
