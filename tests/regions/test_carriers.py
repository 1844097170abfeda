"""8-bit floats carried as bytes: by what they are, with the same bits, or not at all."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn.errors import GraphError
from dslearn.regions.carriers import carry
from dslearn.regions.tracing import to_aten
from tests.support.carriers import NARROW, expect_same, graph_of, run_carried, same_bits

E4M3, E8M0 = torch.float8_e4m3fn, torch.float8_e8m0fnu
ALL = torch.arange(256, dtype=torch.uint8).view(E4M3)
X = torch.randn(16, 16, generator=torch.Generator().manual_seed(3)) * 100
ROWS = torch.tensor([3, 0, 3])


def text(module):
    return [(node.op, node.name, node.target, str(node.args)) for node in module.graph.nodes]


def test_a_graph_of_plain_numbers_is_returned_as_it_is():
    def step(x, w):
        y = F.linear(x.to(torch.bfloat16), w.to(torch.bfloat16)).to(torch.float32)
        return y.to(torch.float16).to(torch.uint8), y.view(torch.int32)

    module = graph_of(step, X, X)
    before = text(module)
    assert carry(module).module is module and text(module) == before
    assert carry(module).inputs == (None, None)


def test_plain_casts_beside_carried_ones_stay_what_they_are():
    # A pass that looks for casts to bf16, not for where values come from, breaks `y`.
    def step(x, codes):
        y = x.to(torch.bfloat16)
        z = codes.to(torch.bfloat16)
        return y * 3, z * 3, x.to(torch.uint8).to(torch.float32)

    carried = expect_same(step, X.abs(), ALL.view(16, 16))
    assert carried.inputs == (None, E4M3)
    casts = [n for n in carried.module.graph.nodes if n.target is torch.ops.aten._to_copy.default]
    kinds = [n.kwargs["dtype"] for n in casts]
    assert kinds == [torch.bfloat16, torch.int32, torch.uint8, torch.float32]


@pytest.mark.parametrize("kind", NARROW, ids=str)
@pytest.mark.parametrize("to", [torch.float32, torch.bfloat16, torch.float16, torch.bool])
def test_all_codes_decode(kind, to):
    expect_same(lambda codes: codes.to(to), ALL.view(torch.uint8).view(kind))


@pytest.mark.parametrize("kind", NARROW, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int32])
def test_numbers_encode(kind, dtype):
    expect_same(lambda x: x.to(kind), (X * 9).to(dtype))
    if dtype.is_floating_point:
        edges = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, -torch.nan, 464.0])
        expect_same(lambda x: x.to(kind), edges.to(dtype))


MOVED = {
    "transposed cast": lambda w, x, r: w.t().to(torch.bfloat16),
    "one kind to another": lambda w, x, r: w.to(E8M0),
    "sliced": lambda w, x, r: (w[1:5, ::2], w[2], w[-1, 3]),
    "gathered": lambda w, x, r: (w[r], w.index_select(1, r)),
    "reshaped": lambda w, x, r: w.reshape(4, 64).permute(1, 0).unsqueeze(0).expand(2, -1, -1),
    "split and joined": lambda w, x, r: torch.stack(
        w.unbind(1)[:3] + w.split(4)[1].t().unbind(1)[:3]
    ),
    "chunks": lambda w, x, r: w.chunk(4, 1)[2].clone(),
    "chosen": lambda w, x, r: torch.where(x > 0, w, w.t()),
    "encoded and joined": lambda w, x, r: torch.cat((w, x.to(E4M3))).t().contiguous(),
    "bytes": lambda w, x, r: w.view(torch.uint8) ^ 0x80,
    "bytes to codes": lambda w, x, r: (w.view(torch.uint8) | 0x80).view(E4M3).float(),
    "signed bytes": lambda w, x, r: w.view(torch.int8),
    "pairs of bytes": lambda w, x, r: (w.view(torch.uint8) + 0).view(torch.int16),
    "another reading": lambda w, x, r: w.view(E8M0).to(torch.bfloat16),
    "fresh": lambda w, x, r: (torch.zeros_like(w), torch.zeros(3, dtype=E4M3), w.new_zeros(2)),
    "filled": lambda w, x, r: (
        torch.full((3,), 1.5, dtype=E4M3),
        torch.full_like(x, -0.3, dtype=E4M3),
    ),
    "like, but wide": lambda w, x, r: torch.zeros_like(w, dtype=torch.float32) + x,
    "copied into": lambda w, x, r: (
        w.clone().copy_(x),
        x.clone().copy_(w),
        torch.empty_like(w).copy_(w),
    ),
    "copied into another kind": lambda w, x, r: torch.empty_like(w, dtype=E8M0).copy_(w),
    "returned": lambda w, x, r: (w, w.view(torch.uint8), x),
    "used as numbers": lambda w, x, r: F.linear(x, w.to(torch.float32)),
}


@pytest.mark.parametrize("name", MOVED)
def test_what_moves_and_casts_gives_the_same_bits(name):
    expect_same(MOVED[name], ALL.view(16, 16), X, ROWS)


def test_a_store_into_a_pool_of_codes_reaches_the_callers_memory():
    def step(pool, x):
        pool[2:4].copy_(x[:2])
        return pool[2].to(torch.float32)

    carried = expect_same(step, ALL.view(16, 16), X)
    pool = ALL.view(16, 16).clone()
    run_carried(carried, pool, X)
    assert same_bits(pool[2:4], X[:2].to(E4M3))


REFUSED = {
    "aten.add": (lambda w, x, r: w + w, "it computes with them"),
    "aten.eq": (lambda w, x, r: w == w, "it computes with them"),
    "aten.isnan": (lambda w, x, r: w.isnan(), "it computes with them"),
    "aten.cat": (lambda w, x, r: torch.cat((w, x.to(torch.uint8))), "it mixes them with other"),
    "aten.index_put_": (
        lambda w, x, r: w.clone().index_put_((r,), w[:3], accumulate=True),
        "it adds them up",
    ),
}


@pytest.mark.parametrize("operation", REFUSED)
def test_what_computes_is_refused_with_its_line(operation):
    function, why = REFUSED[operation]
    seen = []

    def backend(module, inputs):
        seen.append(to_aten(module))
        return module.forward

    torch._dynamo.reset()
    with contextlib.suppress(RuntimeError):  # torch has a graph with it, but no kernel on a CPU
        torch.compile(function, backend=backend, fullgraph=True)(ALL.view(16, 16), X, ROWS)
    with pytest.raises(GraphError, match=why) as refused:
        carry(seen[0])
    assert operation in str(refused.value) and "float8_e4m3fn" in str(refused.value)
    assert f"{Path(__file__).name}:{function.__code__.co_firstlineno}: " in str(refused.value)


# Random programs: each step takes one value of those made so far and makes another.
WIDE = (torch.float32, torch.bfloat16)
STEPS = {
    "wide": lambda x, n: x.to(WIDE[n % 2]),
    "narrow": lambda x, n: x.to(NARROW[n % len(NARROW)]),
    "transpose": lambda x, n: x.t(),
    "rows": lambda x, n: x[[n % 4, 0, 2, n % 3]],
    "clone": lambda x, n: x.clone(),
    "bytes": lambda x, n: x.view(torch.uint8) if x.dtype.itemsize == 1 else x * 2,
    "codes": lambda x, n: x.view(NARROW[n % len(NARROW)]) if x.dtype == torch.uint8 else x,
    "join": lambda x, n: torch.cat((x[:2], x[[3, 2]])),  # torch flips no fp8 that is transposed
}


@st.composite
def programs(draw, plain):
    names = [name for name in STEPS if not plain or name not in ("narrow", "codes")]
    step = st.tuples(st.sampled_from(names), st.integers(0, 7), st.integers(0, 7))
    return draw(st.lists(step, min_size=1, max_size=8))


def program(steps):
    def run(*values):
        values = list(values)
        for name, source, number in steps:
            values.append(STEPS[name](values[source % len(values)], number))
        return values[-4:]

    return run


@settings(max_examples=60, deadline=None)
@given(programs(plain=False), st.sampled_from(NARROW))
def test_random_programs_give_the_same_bits(steps, kind):
    expect_same(program(steps), ALL.view(torch.uint8)[::16].reshape(4, 4).view(kind), X[:4, :4])


@settings(max_examples=40, deadline=None)
@given(programs(plain=True))
def test_random_programs_on_plain_numbers_are_untouched(steps):
    module = graph_of(program(steps), X[:4, :4], X[4:8, :4].to(torch.bfloat16))
    before = text(module)
    assert carry(module).module is module and text(module) == before
