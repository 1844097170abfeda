"""sparse_attn against loops in double precision, the model's attend and its twin."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn import backend
from dslearn.formats.records import Record
from dslearn.kernels.sparse_attn import sparse_attn
from dslearn.model.arith import Arith
from dslearn.model.attention import attend
from dslearn.numerics import Numerics
from dslearn.ops import collect
from dslearn.ops.sparse_attn import reference
from dslearn.ops.sparse_attn import sparse_attn as op
from dslearn.sim.rules import KernelError
from tests.support.attention import by_hand, case
from tests.support.kernels import bits, recorded

SIZES = [(1, 2, 32, 8, 0), (3, 3, 64, 5, 7), (2, 5, 96, 9, 130), (6, 16, 160, 8, 16)]


def attended(c, cores=1):
    return sparse_attn[cores](*c.columns())


def check_close(y, expected):
    expected = torch.as_tensor(expected)
    assert expected.abs().max() > 0.01
    torch.testing.assert_close(y.double(), expected.double(), rtol=0, atol=3e-6)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_loops_in_double_precision_say_the_same(size):
    c = case(*size)
    check_close(attended(c), by_hand(c))


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("round_p", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_equals_its_twin(size, round_p, dtype):
    c = case(*size, dtype=dtype).but(round_p=round_p)
    y, expected = attended(c), reference(*c.arguments())
    assert y.dtype == dtype and y.shape == c.q.shape
    if dtype == torch.bfloat16:
        assert (y == expected).float().mean() > 0.99 and (y - expected).abs().max() < 0.01
    else:
        check_close(y, expected)


@pytest.mark.parametrize("arithmetic", ["fp32", "bf16"])
def test_the_model_attends_in_the_same_way(arithmetic):
    c = case(4, 8, 64, 8, 6).but(round_p=arithmetic == "bf16")
    c = c.but(q=c.q.bfloat16().float())
    near, far = (
        Record(k, 64).unpack(r) for k, r in (("window", c.window), ("compressed", c.entries))
    )
    keys = torch.cat((near.unfold(0, 8, 1).transpose(1, 2), far[c.selected]), 1)
    hidden = torch.zeros(1, 4, 14, dtype=torch.bool)
    expected = attend(c.q[None], keys[None], hidden, c.sink, Arith(Numerics(arithmetic=arithmetic)))
    if arithmetic == "bf16":
        y = attended(c.but(q=c.q.bfloat16())).float()
        assert (y == expected[0]).float().mean() > 0.99
    else:
        check_close(attended(c), expected[0])


@pytest.mark.parametrize("length", [1, 7, 8, 9, 16, 17])
def test_a_window_of_8_ends_where_it_should(length):
    """Every position from 0 on; a query sees the last 8, itself included."""
    c = case(length, 2, 32, start=0)
    y = attended(c, cores=2)
    check_close(y, by_hand(c))
    wider, narrower = (attended(c.but(width=w)) for w in (9, 7))
    assert torch.equal(y, wider) == (length <= 8) and torch.equal(y, narrower) == (length <= 7)


def test_a_ring_may_hold_its_records_in_any_order():
    c = case(1, 4, 32)
    turned = torch.roll(torch.arange(8), 3)
    check_close(attended(c.but(window=c.window[turned], held=c.held[turned])), by_hand(c))


def test_rows_of_a_block_equal_single_steps():
    c = case(6, 4, 64, 8, 5)
    block = attended(c)
    for t in range(6):
        row = slice(t, t + 1)
        one = c.but(q=c.q[row], position=c.position[row], selected=c.selected[row])
        check_close(attended(one)[0], block[t])


def test_a_query_does_not_see_what_comes_after_it():
    c = case(6, 2, 32)
    y = attended(c)
    changed = c.window.clone()
    changed[-3:] = c.window[:3]
    assert torch.equal(bits(attended(c.but(window=changed))[:3]), bits(y[:3]))


def test_a_sink_of_10000_leaves_nothing_and_of_minus_10000_takes_nothing():
    c = case(2, 4, 32, 8, 5)
    assert not attended(c.but(sink=torch.full((4,), 1e4))).any()
    off = c.but(sink=torch.full((4,), -1e4))
    check_close(attended(off), by_hand(off))
    check_close(attended(off).sum() / 1.0, by_hand(off).sum())


def test_the_sink_is_each_heads_own():
    c = case(2, 3, 32, 8, 5)
    y = attended(c.but(sink=torch.tensor([-1e4, 0.0, 1e4])))
    assert y[:, 0].abs().max() > 0 and y[:, 1].abs().max() > 0 and not y[:, 2].any()


@pytest.mark.parametrize("tokens", [1, 2, 3, 6])
@pytest.mark.parametrize("heads", [3, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_two_cores_give_the_bytes_of_one(tokens, heads, dtype):
    c = case(tokens, heads, 64, 8, 9, dtype=dtype).but(round_p=True)
    assert torch.equal(bits(attended(c, 1)), bits(attended(c, 2)))


def test_large_scores_are_stable():
    c = case(2, 3, 64, 8, 5)
    c = c.but(q=c.q * 1e4, sink=torch.zeros(3))
    y = attended(c)
    assert y.isfinite().all()
    check_close(y, by_hand(c))


def test_codes_up_to_448_are_what_they_say():
    c = case(1, 2, 32)
    code = torch.zeros_like(c.window)
    code[:, :32] = 0x7E  # 448, which trn2's own e4m3 would read as NaN
    code[:, 32] = 127 - 9
    y = attended(c.but(window=code, sink=torch.full((2,), -1e4)))
    torch.testing.assert_close(y, torch.full_like(y, 448 / 512), rtol=1e-6, atol=0)


def test_every_code_of_both_records_is_decoded():
    """A single visible key and no sink: the output is the key."""
    c = case(1, 1, 512, width=1)
    window = torch.zeros(1, 528, dtype=torch.uint8)
    window[0, :254] = torch.tensor([b for b in range(256) if b & 127 != 127], dtype=torch.uint8)
    window[0, 512:] = 127 + torch.arange(16) % 5
    c = c.but(window=window, sink=torch.full((1,), -1e30))
    assert torch.equal(attended(c)[0, 0], Record("window", 512).unpack(window)[0])
    entry = torch.arange(288).to(torch.uint8)[None]
    entry[0, 256:] = torch.arange(8, 40) * 3
    c = c.but(held=torch.tensor([-1]), entries=entry, selected=torch.tensor([[0]]))
    assert torch.equal(attended(c)[0, 0], Record("compressed", 512).unpack(entry)[0])


def test_rounding_probabilities_is_a_switch():
    c = case(2, 4, 64, 8, 20)
    exact, rounded = attended(c), attended(c.but(round_p=True))
    change = (exact - rounded).abs().max()
    assert 1e-5 < change < 4e-3
    check_close(rounded, reference(*c.but(round_p=True).arguments()))


def test_records_are_read_once_by_each_query_and_the_window_once_by_all():
    c = case(4, 2, 64, 8, 5)
    (core,) = recorded(lambda: attended(c))
    read = [i for one in core if one.name == "dma_copy" for i in one.inputs if i.dtype == "uint8"]
    assert sum(i.nbytes for i in read) == c.window.numel() + 4 * 5 * 36


@settings(max_examples=12, deadline=None)
@given(
    tokens=st.integers(1, 5), heads=st.integers(1, 9), blocks=st.integers(1, 5),
    width=st.integers(1, 20), chosen=st.integers(0, 12), start=st.integers(0, 30),
)  # fmt: skip
def test_any_size(tokens, heads, blocks, width, chosen, start):
    c = case(tokens, heads, 32 * blocks, width, chosen, start)
    y = attended(c, cores=2)
    assert np.abs(y.numpy() - by_hand(c)).max() < 5e-6


def test_a_prompt_chunk_over_several_blocks_of_keys():
    c = case(10, 2, 32, 300, 140, start=400)
    assert np.abs(attended(c, 2).numpy() - by_hand(c)).max() < 5e-6


def test_the_operation_takes_the_kernel_on_sim():
    c = case(3, 4, 64, 8, 5)
    for one in (c, c.but(entries=None, selected=None), c.but(selected=c.selected[:, :0])):
        with backend.use("sim"), collect() as taken:
            y = op(*one.arguments())
        check_close(y, reference(*one.arguments()))
        assert str(taken) == "sparse_attn: kernel 1"


def test_what_the_kernel_does_not_take_is_refused():
    c = case(1, 2, 64)
    with pytest.raises(AssertionError, match="window: records of D values"):
        attended(c.but(window=c.window[:, :-1].contiguous()))
    c = case(1, 2, 64, 8, 5)
    with pytest.raises(AssertionError, match="entries: records of D values"):
        attended(c.but(entries=c.entries[:, :-1].contiguous()))
    with pytest.raises(KernelError):
        attended(case(1, 129, 32))
    assert math.isfinite(float(attended(case(1, 128, 32)).sum()))
