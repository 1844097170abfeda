"""Reduction: a planted pair is found, nothing more, by crash and by silent corruption."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dslearn.errors import UsageError
from dslearn.regions.workshop import Case, Fault, RuleCompiler, capture, here, reduce
from dslearn.regions.workshop.pieces import cut, record
from dslearn.regions.workshop.rule_compiler import longer_than, uses
from tests.support.workshop import CRASH, PAIR, names, planted


def check_minimal(case: Case, backend: RuleCompiler, signature: str) -> None:
    """Without any one operation, the graph fails otherwise or not at all."""
    known = record(case)
    for removed in case.operations:
        kept = set(case.operations) - {removed}
        ends = {n for n in kept if not any(user in kept for user in n.users)}
        if kept:
            assert here(backend)(cut(case, known, kept, ends)).signature != signature


def test_two_of_200_operations_are_found():
    steps = []
    found = reduce(planted(200), here(RuleCompiler([CRASH])), on_step=lambda *s: steps.append(s))
    assert names(found.case) == ["erf", "cos"]
    assert found.outcome.text == "CompilerCrash: NCC_IINL902: internal error in pass InsertLoops"
    assert found.operations == 200 and found.compiles < 60
    assert steps == sorted(steps, key=lambda step: step[0]) and steps[-1][0] == found.compiles
    assert found.title.startswith("crash: CompilerCrash: NCC_IINL902") and "2 of 200" in found.title


@settings(max_examples=25)
@given(st.data(), st.integers(2, 60), st.integers(0, 9), st.booleans())
def test_any_planted_pair_is_found(data, operations, seed, silent):
    first = data.draw(st.integers(0, operations - 2))
    second = data.draw(st.integers(first + 1, operations - 1))
    fault = Fault(PAIR, corrupt=lambda value: value + torch.nan) if silent else CRASH
    case, backend = planted(operations, (first, second), seed), RuleCompiler([fault])
    assume(here(backend)(case).kind != "passed")  # a wrong value need not reach a result
    found = reduce(case, here(backend))
    assert names(found.case) == ["erf", "cos"]
    assert found.outcome.kind == ("wrong" if silent else "crash")
    check_minimal(found.case, backend, found.outcome.signature)


@pytest.mark.parametrize("seed", range(3))
def test_a_flaky_culprit_is_found(seed):
    backend = RuleCompiler([Fault(PAIR, CRASH.code, CRASH.stage, rate=0.3)], seed)
    found = reduce(planted(16, (5, 12)), here(backend), rate=0.25, confidence=0.999)
    assert names(found.case) == ["erf", "cos"]
    assert backend.compiles == found.compiles


def test_a_culprit_by_size_keeps_so_many_operations():
    found = reduce(planted(50), here(RuleCompiler([Fault(longer_than(7))])))
    assert len(found.case.operations) == 8
    check_minimal(found.case, RuleCompiler([Fault(longer_than(7))]), found.outcome.signature)


def test_another_failure_is_not_followed():
    other = Fault(uses("minimum"), "NCC_OTHER", "Earlier")
    # The other one strikes first while its operation is there; the pair is what is asked for.
    graph = planted(30, (3, 20))
    assert reduce(graph, here(RuleCompiler([other, CRASH]))).outcome.text.startswith(
        "CompilerCrash: NCC_OTHER"
    )
    assert names(reduce(graph, here(RuleCompiler([CRASH, other]))).case) == ["erf", "cos"]


def test_a_value_that_is_returned_too_is_part_of_the_failure():
    def find(module, inputs):
        pair = PAIR(module, inputs)
        returned = module.graph.output_node().all_input_nodes
        return pair if pair and pair.args[0] in returned else None

    def step(x):
        y = torch.erf(x + 1)
        return torch.cos(y), y, x * 2

    found = reduce(capture(step, torch.ones(3)), here(RuleCompiler([Fault(find)])))
    assert names(found.case) == ["erf", "cos"]
    assert [node.name for node in found.case.module.graph.output_node().args[0]] == ["erf", "cos"]


def test_operations_with_several_results_and_writes_to_inputs_can_be_removed_and_kept():
    def step(x, cache):
        low, high = x.split(2, -1)
        best, where = torch.topk(low + high, 1)
        cache.copy_(cache + torch.erf(best))
        return torch.cos(torch.erf(best)), where

    case = capture(step, torch.arange(8.0).view(2, 4), torch.ones(2, 1))
    assert names(reduce(case, here(RuleCompiler([CRASH]))).case) == ["erf", "cos"]
    for name in ("topk", "split", "copy_"):
        compiler = RuleCompiler([Fault(uses(name))])
        found = reduce(case, here(compiler)).case
        assert names(found)[0] == name and set(names(found)[1:]) <= {"getitem"}
        found.module(*found.inputs())


def test_a_graph_that_passes_is_refused():
    with pytest.raises(UsageError, match="no failure to reduce: 29 compiles passed"):
        reduce(planted(5, (1, 3)), here(RuleCompiler([])), rate=0.1)
