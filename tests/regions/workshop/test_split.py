"""Splitting: every piece compiles, together they compute the same, and fewer do not exist."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn.errors import UsageError
from dslearn.regions.workshop import Fault, RuleCompiler, capture, here, split
from dslearn.regions.workshop.pieces import record
from dslearn.regions.workshop.rule_compiler import feeds, longer_than, uses
from dslearn.regions.workshop.split import _run
from tests.support.workshop import CRASH, planted


def fewest(case, backend) -> int:
    """The number of pieces, by trying every run of operations."""
    operations, known, attempt = case.operations, record(case), here(backend)
    best = [0] + [len(operations) + 1] * len(operations)
    for end in range(1, len(operations) + 1):
        for begin in range(end):
            if best[begin] + 1 < best[end]:
                piece = _run(case, known, operations[begin:end])
                if attempt(piece).kind == "passed":
                    best[end] = best[begin] + 1
    return best[-1]


def check_chain(found, backend, *inputs) -> None:
    """The pieces compute what the graph does, bit for bit here, and mutate the same inputs."""
    mine, others = ([tensor.clone() for tensor in inputs] for _ in range(2))
    expected, got = found.whole.module(*mine), found.chain(backend)(*others)
    torch.testing.assert_close(got, expected, rtol=0, atol=0)
    torch.testing.assert_close(others, mine, rtol=0, atol=0)


@settings(max_examples=15)
@given(st.integers(2, 14), st.integers(0, 99), st.integers(2, 6), st.booleans())
def test_no_cut_has_fewer_pieces(operations, seed, limit, pairs):
    faults = [Fault(longer_than(limit)), *([Fault(feeds("minimum", "relu"))] if pairs else [])]
    case, backend = planted(operations, (0, operations - 1), seed), RuleCompiler(faults)
    found = split(case, here(backend))
    assert len(found.pieces) == fewest(case, backend)
    assert sum(len(piece.operations) for piece in found.pieces) == operations
    assert all(here(backend)(piece).kind == "passed" for piece in found.pieces)
    check_chain(found, backend, *case.inputs())


def test_a_graph_that_compiles_is_one_piece_after_one_compile():
    found = split(planted(200), here(RuleCompiler([])))
    assert (len(found.pieces), found.compiles) == (1, 1)


def test_a_large_graph_takes_few_compiles():
    found = split(planted(200), here(RuleCompiler([Fault(longer_than(60)), CRASH])))
    sizes = [len(piece.operations) for piece in found.pieces]
    assert sizes == [60, 60, 60, 20] and found.compiles < 4 * 14


def test_a_flaky_crash_is_cut_apart():
    rare = Fault(CRASH.find, rate=0.3)
    found = split(planted(20, (5, 9)), here(RuleCompiler([rare], 3)), rate=0.3, confidence=0.999)
    assert [len(piece.operations) for piece in found.pieces] == [9, 11]


def test_wrong_pieces_are_cut_too():
    backend = RuleCompiler([Fault(CRASH.find, corrupt=lambda value: -value)])
    case = planted(20, (5, 9))
    check_chain(split(case, here(backend)), backend, *case.inputs())


def test_several_results_stay_with_their_operation_and_inputs_are_mutated():
    table = torch.tensor([1.0, 2.0])

    def step(x, cache):
        low, high = x.split(2, -1)
        cache.add_(low)
        best, where = torch.topk(cache + high, 1)
        return best * table, where, x

    case = capture(step, torch.arange(8.0).view(2, 4), torch.ones(2, 2))
    backend = RuleCompiler([Fault(longer_than(3))])
    found = split(case, here(backend))
    assert len(found.pieces) > 1
    check_chain(found, backend, *case.inputs())


def test_an_operation_that_fails_alone_is_named():
    with pytest.raises(UsageError, match="cos_default fails even alone: crash: CompilerCrash"):
        split(planted(20, (5, 9)), here(RuleCompiler([Fault(uses("cos"))])))
