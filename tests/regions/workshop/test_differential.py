"""The differential check: what is drawn, what is compared, and what is caught."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn.errors import UsageError
from dslearn.regions.workshop import Fault, RuleCompiler, differential
from dslearn.regions.workshop.case import describe
from dslearn.regions.workshop.rerun import FLOATS, TOLERANCES, difference, draw
from dslearn.regions.workshop.rule_compiler import uses

X = torch.linspace(-3, 3, 64).view(8, 8)


def step(x):
    return torch.tanh(x) * 2


def miscompiled(function, operation, corrupt):
    fault = Fault(uses(operation), corrupt=corrupt)
    return torch.compile(function, backend=RuleCompiler([fault]), fullgraph=True)


def one_row(t):
    return torch.where(torch.arange(8).view(8, 1) == 5, t + 0.01, t)


def one_value(t):
    return torch.where(t > 0.99, 0.99, t)


def no_nan(t):
    return torch.nan_to_num(t)


@pytest.mark.parametrize(
    ("corrupt", "seed", "index"),
    [(one_row, 0, (5, 0)), (one_value, 0, None), (no_nan, 3, None)],
)
def test_a_corruption_of_some_rows_or_values_is_caught_and_repeated(corrupt, seed, index):
    compiled = miscompiled(step, "tanh", corrupt)
    found = differential(compiled, step, (X,))
    assert found is not None and found.seed == seed and found.difference.what == "output 0"
    assert index in (None, found.difference.index)
    assert f"inputs of seed {seed}" in str(found) and "instead of" in str(found)
    again = differential(compiled, step, (X,), seeds=[found.seed])
    assert repr(again) == repr(found)  # not ==: NaN may be among the values
    if seed == 3:
        assert differential(compiled, step, (X,), seeds=[0, 1, 2, 4, 5, 6]) is None


def test_what_is_right_passes():
    assert differential(torch.compile(step, backend="aot_eager"), step, (X,)) is None


def test_the_values_named_are_those_that_differ():
    found = differential(lambda x: one_row(step(x)), step, (X,), seeds=[0])
    (x,) = draw(describe([X]), 0)
    assert found.difference.expected == step(x)[5, 0].item()
    assert found.difference.got == one_row(step(x))[5, 0].item()
    assert (found.difference.count, found.difference.of) == (8, 64)


def test_mutated_inputs_are_compared():
    pool = torch.zeros(4, 8)

    def store(pool, row, slot):
        pool.index_copy_(0, slot, row)
        return row.sum()

    def forgets(pool, row, slot):
        return row.sum()

    example = pool, torch.ones(1, 8), torch.tensor([3])
    assert differential(store, store, example) is None
    found = differential(forgets, store, example)
    assert found.difference.what == "input 0 after the call" and found.difference.index[0] == 3
    assert pool.eq(0).all(), "the example is left alone"


def test_integers_stay_within_ranges_that_are_stated_or_those_of_the_example():
    seen = []

    def look(table, ids):
        seen.append(ids.clone())
        return table[ids]

    table, ids = torch.randn(100, 2), torch.tensor([3, 17, 20, 5])
    assert differential(look, look, (table, ids), seeds=range(20)) is None
    assert torch.cat(seen).min() >= 3 and torch.cat(seen).max() <= 20
    seen.clear()
    assert differential(look, look, (table, ids), seeds=range(20), ranges={1: (0, 99)}) is None
    assert torch.cat(seen).min() == 0 and torch.cat(seen).max() == 99
    with pytest.raises(UsageError, match="eager fails on inputs of seed 0: IndexError"):
        differential(look, look, (table, ids), ranges={1: (100, 200)})
    with pytest.raises(UsageError, match="ranges has 2: the tensors are numbered 0 to 1"):
        differential(look, look, (table, ids), ranges={2: (0, 1)})


def test_arguments_may_be_nested_and_other_things_than_tensors():
    def nested(pair, options, n):
        return {"sum": pair[0] + options["y"] * n}

    example = ((X, X), {"y": X}, 3)
    assert differential(nested, nested, example) is None
    wrong = differential(lambda *a: nested(*a)["sum"][:1], nested, example)
    assert wrong.difference.got == (torch.float32, [1, 8])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.float8_e4m3fn, torch.bool])
def test_bytes_are_compared_bit_for_bit(dtype):
    example = torch.tensor([0, 1] * 8).to(dtype)

    def flip(t):
        raw = t.clone().view(torch.uint8)
        raw[9] ^= 1
        return raw.view(dtype)

    found = differential(flip, lambda t: t.clone(), (example,), seeds=[0])
    assert found.difference.count == 1


def test_pairs_of_fp4_that_differ_are_shown_by_their_codes():
    pairs, others = (
        torch.tensor(codes, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
        for codes in ([0x12, 0x34], [0x12, 0x35])
    )
    assert str(difference("output 0", pairs, others)) == (
        "output 0 [1]: 53 instead of 52 (1 of 2 differ)"
    )
    assert difference("output 0", pairs, pairs) is None


@pytest.mark.parametrize("dtype", list(TOLERANCES))
def test_floats_are_compared_with_the_tolerances_of_torch_testing(dtype):
    relative, absolute = torch.testing._comparison._DTYPE_PRECISIONS[dtype]
    assert TOLERANCES[dtype] == (relative, absolute)
    x = torch.linspace(1, 2, 8, dtype=dtype)
    for factor, fine in ((0.0, True), (4 * relative + 4 * absolute, False)):
        found = differential(lambda t, f=factor: t * (1 + f), lambda t: t.clone(), (x,), seeds=[0])
        assert (found is None) == fine
    assert differential(lambda t: t * 1.5, lambda t: t.clone(), (x,), tolerance=(1, 0)) is None


def test_special_values_are_drawn_where_the_seed_says():
    specs = describe([torch.linspace(-1, 1, 4096)])
    plain, finite, every = (draw(specs, 0, n)[0] for n in (0, 5, len(FLOATS)))
    assert plain.isfinite().all() and plain.ne(0).all()
    zeros = finite == 0
    assert finite.isfinite().all() and zeros.any() and torch.signbit(finite[zeros]).any()
    assert (finite.abs() == torch.tensor(1e-42)).any(), "a subnormal"
    assert every.isnan().any() and every.isposinf().any() and every.isneginf().any()


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 4), min_size=0, max_size=3),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool]),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_what_is_drawn_looks_like_the_example(shape, dtype, seed, transposed):
    example = torch.arange(torch.Size(shape).numel()).view(shape).to(dtype)
    example = example.mT if transposed and len(shape) > 1 else example
    (spec,) = describe([example])
    (one,), (two,) = draw([spec], seed), draw([spec], seed)
    assert (one.shape, one.stride(), one.dtype) == (example.shape, example.stride(), dtype)
    assert one.equal(two) and (not one.numel() or one.data_ptr() != two.data_ptr())
    if one.numel() > 1 and not dtype.is_floating_point:
        assert example.min() <= one.min() and one.max() <= example.max()


def test_memory_that_is_shared_stays_shared():
    pool = torch.arange(24.0).view(4, 6)
    row, last, apart = draw(describe([pool[1], pool[1:], pool.clone()]), 0)
    assert row.equal(last[0]) and not row.equal(apart[1])
    row.zero_()
    assert last[0].eq(0).all() and apart.ne(0).any()
    assert (last.storage_offset(), last.untyped_storage().nbytes()) == (0, 18 * 4)
    wide = torch.ones(1, 4).expand(3, 4)
    assert draw(describe([wide]), 0)[0].stride() == (0, 1)
    with pytest.raises(UsageError, match="two inputs of different dtypes share memory"):
        describe([pool, pool.view(torch.int32)])


def test_draws_are_the_same_everywhere():
    """Integers of NumPy's PCG64, whose stream is fixed; computed here from its raw words."""
    import numpy as np

    (drawn,) = draw(describe([torch.tensor([-1.0, 3.0])]), 7)
    raw = np.random.default_rng(7).integers(0, 2**24, 2)
    assert drawn.tolist() == pytest.approx([-1 + 4 * k / (2**24 - 1) for k in raw.tolist()])
