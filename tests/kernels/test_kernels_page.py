"""docs/kernels.md is true: every example runs, every refusal fires its rule with that message."""

from __future__ import annotations

import pytest

from dslearn.sim.rules import RULES
from tools import kernel_examples as page_tool

PAGE = page_tool.PAGE.read_text(encoding="utf-8")
EXAMPLES = list(page_tool.examples(PAGE))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: f"{e.rule}-{e.kind}")
def test_an_example_does_what_its_heading_says(example):
    assert page_tool.problem(example) == ""


def test_every_rule_has_a_refused_example_and_a_legal_twin():
    for kind in ("refused", "legal"):
        assert sorted({e.rule for e in EXAMPLES if e.kind == kind}) == sorted(RULES), kind


def test_messages_on_the_page_are_those_that_are_raised():
    assert page_tool.with_messages(PAGE) == PAGE, "python tools/kernel_examples.py"
    assert PAGE.count("```text") >= len(RULES), "each refused example shows its message"


def test_the_scripts_run_in_order():
    names = {}
    sources = page_tool.scripts(PAGE)
    for source in sources:
        page_tool.run(source, names)
    assert len(sources) >= 4 and "double" in names


def test_examples_are_short():
    long = [e for e in EXAMPLES if len(e.source.splitlines()) > 12]
    assert not long, long


def test_the_tool_sees_a_wrong_example():
    runs = page_tool.Example("bounds", "refused", "t = x[0:2]\n")
    assert page_tool.problem(runs) == "bounds: the refused example runs"
    other = page_tool.Example("view", "refused", "t = x[0:999]\n")
    assert "refused by rule bounds" in page_tool.problem(other)
    twin = page_tool.Example("bounds", "legal", "t = x[0:999]\n")
    assert "the legal twin is refused" in page_tool.problem(twin)


def test_the_reference_page_says_who_else_refuses_what():
    reference = page_tool.ROOT / "docs" / "reference" / "nki.md"
    rows = reference.read_text(encoding="utf-8").partition("\n## Rules\n")[2].partition("\n## ")[0]
    named = [rule for row in rows.splitlines() for rule in row.partition(" | ")[0][2:].split(", ")]
    lost = [rule for rule in RULES if rule not in named]
    assert not lost, f"add to docs/reference/nki.md, section Rules: {lost}"
