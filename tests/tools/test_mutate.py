"""The mutation list fits the source, and the runner tells a noticed change from a harmless one."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

import mutate
from mutate import Mutation

ROOT = Path(__file__).parents[2]
MUTATIONS = mutate.read_list()
# what one wrong thing moves most, and what hardly shows in logits and needs tests of its own
REQUIRED = [
    "window one shorter",
    "another pad id",
    "no inverse rotation",
    "no sink",
    "gate not clamped",
    "comb transposed",
    "window keys not quantised",
    "compressed entries not quantised",
    "index keys not quantised",
    "top-k one less",
    "norm eps 1e-6",
    "YaRN beta_fast 16",
    "candidate blocks one less",
    "19 Sinkhorn rounds",
    "hc_eps 0 in pre",
    "hc_eps 0 after the softmax",
    "hc_eps 0 in the divisions",
]
HARMLESS = Mutation(
    "harmless", "model/hyper.py", "import numpy as np", "import numpy as np  # as always",
    ("test_hyper.py::test_pre_has_an_eps_and_post_a_factor_of_two",),
)  # fmt: skip


def test_names_are_different_and_the_required_ones_are_there():
    names = [mutation.name for mutation in MUTATIONS]
    assert len(names) == len(set(names)) and set(REQUIRED) <= set(names)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name.replace(" ", "-"))
def test_a_mutation_fits_the_source(mutation):
    """Its text occurs exactly once, what comes out is another valid program, its tests exist."""
    text = (ROOT / "dslearn" / mutation.file).read_text(encoding="utf-8")
    changed = mutate.mutated(text, mutation)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text))
    assert mutation.tests
    for test in mutation.tests:
        module, _, name = test.partition("::")
        source = (ROOT / mutate.TESTS / module).read_text(encoding="utf-8")
        assert not name or f"def {name}(" in source, f"{test} does not exist"


def test_text_that_is_gone_or_ambiguous_is_refused():
    for old in ("no such text", "import"):
        with pytest.raises(ValueError, match="must be once"):
            mutate.mutated("import a\nimport b\n", replace(HARMLESS, old=old))


def test_arguments(capsys):
    assert mutate.main(["--list", "--only", "sink"]) == 0
    assert capsys.readouterr().out.split("\n") == ["no sink", ""]
    with pytest.raises(SystemExit) as stopped:
        mutate.main(["--only", "nothing of that name"])
    assert stopped.value.code == 2


@pytest.mark.slow
def test_a_mutation_is_noticed_and_a_harmless_change_is_not(monkeypatch, capsys):
    broken = next(m for m in MUTATIONS if m.name == "post without its factor 2")
    broken = replace(broken, tests=HARMLESS.tests)
    unusable = replace(HARMLESS, name="unusable", new="import nunpy as np")
    monkeypatch.setattr(mutate, "read_list", lambda: [broken, HARMLESS, unusable])
    assert mutate.main([]) == 1
    out = capsys.readouterr().out
    assert "[1/3] killed   post without its factor 2" in out
    assert f"| killed | {HARMLESS.tests[0]} |" in out
    assert "[2/3] SURVIVED harmless" in out and "[3/3] NOT RUN  unusable" in out
    assert "not noticed: harmless, unusable" in out and "1 of 3" in out
    monkeypatch.setattr(mutate, "work", lambda some: [mutate.Outcome(broken, "killed", "x", 1.0)])
    assert mutate.main([]) == 0
