"""Public bug reports about compilers, each with the lint's or the workshop's answer.

Reports of torch are reproduced as they are, on CPU; those of other compilers by a stand-in that
computes as the report says. A report that does not reproduce any more fails here: then the rule or
the page that leans on it needs another look.
"""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd

from dslearn.regions.workshop import Fault, RuleCompiler, differential
from dslearn.regions.workshop.rule_compiler import uses
from tests.support.graph_lint import broken


def compiled(function):
    return torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=False)


def graph_of(function, *inputs):
    """Names of the ATen operations that a compiler gets."""
    found = []

    def keep(module, examples):
        found.extend(str(n.target) for n in module.graph.nodes if n.op == "call_function")
        return module.forward

    backend = aot_autograd(fw_compiler=keep, keep_inference_input_mutations=True)
    with torch.no_grad():
        torch.compile(function, backend=backend, fullgraph=True, dynamic=False)(*inputs)
    return found


def add_to_both(a, b):
    a.add_(1)
    b.add_(2)


def test_pytorch_194747_views_of_two_dtypes_with_a_write_are_refused():
    scales = torch.zeros(8, dtype=torch.int16)
    codes = scales.view(torch.uint8)
    with (
        torch.no_grad(),
        pytest.raises(Exception, match="mutations on views with different dtypes"),
    ):
        compiled(add_to_both)(codes, scales)
    assert broken(add_to_both, codes, scales) == ["storage-dtypes"]
    # One dtype, packed by arithmetic, is the way round.
    assert broken(lambda lo, hi: lo + 256 * hi, torch.zeros(4), torch.zeros(4)) == []


def test_pytorch_198095_a_view_of_a_second_alias_comes_back_from_the_wrong_place():
    def step(pool, tail):
        pool.add_(100)
        return tail[0]

    pool = torch.arange(24.0).view(4, 6).clone()  # not itself a view
    right = step(other := pool.clone(), other[1:])
    found = differential(compiled(step), step, (pool, pool[1:]), seeds=[0])
    assert found is not None and found.difference.what == "output 0"
    got = compiled(step)(pool, pool[1:])
    assert pool.equal(other), "the write itself is right"
    assert right.equal(pool[1]) and got.equal(pool[0]), "row 0 came back in the place of row 1"
    assert "aliased-views" in broken(step, pool, pool[1:])
    # What is called with the pool alone, and slices it inside, is right.
    inside = lambda pool: step(pool, pool[1:])  # noqa: E731
    assert differential(compiled(inside), inside, (pool,)) is None
    assert "aliased-views" not in broken(inside, pool)


def test_pytorch_198095_a_flat_view_of_a_second_alias_is_an_assertion():
    def step(pool, tail):
        pool.add_(100)
        return tail.view(-1)

    pool = torch.arange(24.0).view(4, 6)
    with pytest.raises(AssertionError, match="incorrect out shape"):
        compiled(step)(pool, pool[1:])
    assert "aliased-views" in broken(step, pool, pool[1:])


@pytest.mark.parametrize("layer_major", [True, False])
def test_pytorch_88817_layers_of_a_token_major_pool_become_a_synthetic_base(layer_major):
    pool = torch.zeros(2, 4, 3, 8) if layer_major else torch.zeros(4, 2, 3, 8)
    layers = (pool[0], pool[1]) if layer_major else (pool[:, 0], pool[:, 1])
    names = graph_of(add_to_both, *layers)
    rebuilt = sum("as_strided" in name for name in names)
    assert (rebuilt == 0) == layer_major, names
    found = broken(add_to_both, *layers)
    assert ("aliased-views" in found, "noncontiguous-input" in found) == (
        not layer_major,
        not layer_major,
    )
    assert differential(compiled(add_to_both), add_to_both, layers) is None, "right, but slow"


def test_pytorch_133512_strides_are_lost_behind_a_write():
    def step(x):
        x.add_(1)
        return torch.as_strided_copy(x, (3,), (2,))

    strided = torch.arange(10)[::2]
    found = differential(compiled(step), step, (strided,), ranges={0: (0, 1000)}, seeds=[0])
    assert found is not None and found.difference.what == "output 0"
    assert broken(step, strided) == ["noncontiguous-input"]
    assert differential(compiled(step), step, (torch.arange(5),), seeds=[0]) is None


def test_pytorch_174371_a_write_through_overlapping_strides_counts_once():
    def step(x):
        x.as_strided((4, 3), (1, 1)).add_(1)
        return x

    found = differential(compiled(step), step, (torch.zeros(8),), seeds=[0])
    assert found is not None and found.difference.index == (1,), "the first that is written twice"


def test_pytorch_140171_as_strided_of_an_input_that_is_a_view_does_not_compile():
    def step(x):
        x.as_strided((10,), (1,), 5).add_(1)

    with torch.no_grad(), pytest.raises(Exception, match="out of bounds for storage"):
        compiled(step)(torch.arange(20)[:10])


def test_pytorch_104505_as_strided_of_a_view_is_refused():
    def step(x):
        x.diagonal().as_strided((2,), (1,), 0).add_(1.0)

    with torch.no_grad(), pytest.raises(Exception, match="as_strided\\(\\) is non-compositional"):
        compiled(step)(torch.zeros(2, 4))


def test_pytorch_172747_a_bitcast_of_an_input_is_reported():
    def step(packed):
        return packed.view(torch.float16).float()

    assert broken(step, torch.zeros(4, 8, dtype=torch.uint8)) == ["bitcast-input"]


def int32(values):
    """What a compiler that turns int64 into int32 leaves of a value."""
    return values.to(torch.int32).to(torch.int64)


def by_reciprocal(divisor):
    """A floor division by a constant, through the reciprocal in fp32."""

    def corrupt(exact_quotient):
        numerator = exact_quotient * divisor
        return torch.floor(numerator.float() * (1.0 / torch.tensor(float(divisor)))).long()

    return corrupt


def test_neuron_sdk_785_a_product_of_int64_is_cut_to_int32():
    def hash_(ids):
        return ids * 1_000_003

    wrong = torch.compile(hash_, backend=RuleCompiler([Fault(uses("mul"), corrupt=int32)]))
    ids = torch.tensor([0, 129_279])
    found = differential(wrong, hash_, (ids,), seeds=[0])
    assert found is not None and abs(found.difference.got) < 2**31 <= found.difference.expected
    assert broken(hash_, ids) == ["int64-arithmetic"]
    assert differential(wrong, hash_, (ids,), ranges={0: (0, 2147)}) is None, "where it fits"
    small = lambda ids: ids.to(torch.int32).clamp(0, 2147) * 1_000_003  # noqa: E731
    assert broken(small, ids) == []


@pytest.mark.parametrize(
    ("numerator", "reported"),
    [(2**31 - 1, 195_225_792), (2**31, -195_225_792), (2**40, 0), (2**62, 0)],
)
def test_openvino_37766_a_quotient_of_int64_is_computed_in_int32_and_fp32(numerator, reported):
    values = torch.tensor([numerator])
    assert torch.trunc(int32(values).float() / 11).long().item() == reported
    assert numerator // 11 != reported
    assert broken(lambda x: x // 11, values) == ["int-division"]


@pytest.mark.parametrize("numerator", [777_777_777, 1_111_111_111, 1_900_000_000, -1_999_999_999])
def test_openvino_35830_a_quotient_of_int32_through_fp32_is_inexact(numerator):
    values = torch.tensor([numerator])
    exact = torch.div(values, 11, rounding_mode="trunc")
    assert torch.trunc(values.float() / 11).long().item() != exact.item()


@pytest.mark.parametrize("divisor", [3, 7, 11, 41, 127, 1009, 65_521])
def test_neuron_division_through_fp32_is_exact_below_2_to_20_and_not_above(divisor):
    """The bound that the rule `int-division` states."""

    def divide(x):
        return torch.div(x, divisor, rounding_mode="floor")

    small, large = torch.arange(2**20), torch.arange(2**31 - 2**20, 2**31)
    by_fp32 = lambda x: torch.floor(x.float() / divisor).long()  # noqa: E731
    assert divide(small).equal(by_fp32(small))
    assert not divide(large).equal(by_fp32(large))
    found = differential(by_fp32, divide, (torch.tensor([0, 2**31 - 1]).repeat(2048),), seeds=[0])
    assert found is not None and broken(divide, large) == ["int-division"]
    assert broken(lambda x: divide(x.clamp(0, 2**20 - 1)), large) == []


def test_tt_metal_54847_an_exact_multiple_times_the_reciprocal_is_one_too_low():
    forty_one = torch.tensor([41])
    assert by_reciprocal(41)(forty_one // 41).item() == 0 != (forty_one // 41).item()


def test_tt_metal_54048_a_remainder_beyond_2_to_23_is_off_by_divisors():
    x = torch.tensor([14_260_600 * 4 + 1])
    quotient = torch.floor(x.float() * (1 / torch.tensor(3.0))).long()
    assert not 0 <= (x - quotient * 3).item() < 3
    assert broken(lambda x: x % 3, x) == ["int-division"]
