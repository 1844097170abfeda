"""Attempts: every end of a compile becomes an outcome, and a reproducer runs on its own."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys

import pytest
import torch

from dslearn.errors import UsageError
from dslearn.regions.workshop import Fault, Outcome, RuleCompiler, capture, here, in_child, source
from dslearn.regions.workshop.rule_compiler import breaks, feeds, longer_than, uses
from tests.support.workshop import CRASH, planted

BACKENDS = """
import ctypes, os, subprocess, sys, time
import torch

def aborts(module, inputs):
    os.abort()

def segfaults(module, inputs):
    ctypes.string_at(0)

def leaves(module, inputs):
    print("assertion failed in pass Tiling", file=sys.stderr, flush=True)
    os._exit(70)

def hangs(module, inputs):
    subprocess.run(["sleep", "600"])

def fine(module, inputs):
    print("compiling, with words of its own")
    return module.forward

def raises(module, inputs):
    raise RuntimeError("NCC_IBCG902:\\nno place for it")

library = torch.library.Library("workshop_test", "FRAGMENT")
library.define("half(Tensor x) -> Tensor")
library.impl("half", lambda x: x / 2, "CompositeExplicitAutograd")
library.impl("half", lambda x: torch.empty_like(x), "Meta")

def step(x):
    return torch.ops.workshop_test.half(x) + 1
"""


@pytest.fixture(scope="module")
def backends(tmp_path_factory):
    """A module to import, here and in children."""
    folder = tmp_path_factory.mktemp("backends")
    (folder / "workshop_backends.py").write_text(BACKENDS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("aborts", "killed", "SIGABRT"),
        ("segfaults", "killed", "SIGSEGV"),
        ("leaves", "killed", "exit code 70: assertion failed in pass Tiling"),
        ("raises", "crash", "RuntimeError: NCC_IBCG902: no place for it"),
        ("fine", "passed", ""),
    ],
)
def test_however_a_compiler_dies_there_is_an_outcome(backends, name, kind, text):
    outcome = in_child(f"workshop_backends:{name}")(planted(4, (0, 2)))
    assert outcome.kind == kind and outcome.text.startswith(text), outcome


def test_a_compiler_without_end_is_ended(backends):
    outcome = in_child("workshop_backends:hangs", timeout_s=0.5)(planted(4, (0, 2)))
    assert outcome == Outcome("timeout", "no end after 0.5 s")


def test_operations_of_a_module_are_there_in_the_child(backends):
    case = capture(importlib.import_module("workshop_backends").step, torch.ones(3))
    assert case.imports == ("workshop_backends",)
    assert in_child("aot_eager")(case) == Outcome("passed")


def test_a_reproducer_needs_neither_dslearn_nor_its_neighbours(tmp_path):
    def step(x, ids, scale):
        masked = torch.where(ids > 2, x.t() * float("inf"), scale)
        return masked.split(2)[0].to(torch.bfloat16), torch.full((2,), -float("inf"))

    example = torch.arange(12.0).view(4, 3), torch.arange(4), torch.tensor(2.0)
    text = source(capture(step, *example, seed=5), 'crash: """NCC_X"""\\n')
    modules = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else [node.names[0].name])
    }
    assert modules <= {*sys.stdlib_module_names, "torch", "numpy"}
    assert "stride=(3, 1)" in text and "seed=5" in text and "low=0, high=3" in text
    file = tmp_path / "reproducer.py"
    file.write_text(text)
    command = [sys.executable, "-P", str(file), "--backend", "aot_eager", "--compiles", "2"]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    ran = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == "compile 1: passed\ncompile 2: passed\n0 of 2 compiles failed\n"


def test_in_this_process_the_same_words_are_found():
    case = planted(6, (0, 3))
    assert here("eager")(case) == Outcome("passed")
    crash = here(RuleCompiler([CRASH]))(case)
    assert crash.signature == "crash NCC_IINL902"
    wrong = here(RuleCompiler([Fault(uses("minimum"), corrupt=lambda t: t.half())]))(case)
    assert wrong.kind == "wrong" == wrong.signature and "torch.float16" in wrong.text
    assert here(lambda module, inputs: lambda *x: ())(case).text.startswith("number of outputs: 0")


def test_a_backend_may_change_the_graph_that_it_is_given():
    def spoils(module, inputs):
        run = module.forward
        module.graph.erase_node(module.graph.output_node())
        return run

    case = planted(6, (0, 3))
    assert here(spoils)(case).kind == "passed" == here(spoils)(case).kind


def test_equal_seeds_crash_on_the_same_compiles():
    case, rare = planted(6, (0, 3)), Fault(CRASH.find, rate=0.4)

    def course(seed):
        attempt = here(RuleCompiler([rare], seed))
        return [attempt(case).kind for _ in range(100)]

    assert course(1) == course(1) != course(2)
    assert 15 < course(1).count("crash") < 65  # 40 expected, standard deviation 5


def test_rules_look_for_what_they_say():
    def finds(find, step, *inputs):
        case = capture(step, *inputs)
        return here(RuleCompiler([Fault(find)]))(case).kind == "crash"

    x, codes = torch.ones(3), torch.ones(4, 8, dtype=torch.int32)
    assert finds(feeds("exp", "add"), lambda x: x.exp() + 1, x)
    assert not finds(feeds("add", "exp"), lambda x: x.exp() + 1, x)
    assert finds(longer_than(1), lambda x: x.exp() + 1, x)
    assert not finds(longer_than(2), lambda x: x.exp() + 1, x)
    assert finds(uses("exp"), lambda x: x.exp() + 1, x) and not finds(
        uses("exp"), lambda x: x + 1, x
    )
    narrowed = breaks("byte-assembly")
    assert finds(narrowed, lambda c: torch.cat((c.byte(), c.byte()), -1), codes)
    assert not finds(narrowed, lambda c: torch.cat((c, c), -1).byte(), codes)


def test_the_stand_in_serves_torch_compile():
    compiler = RuleCompiler([Fault(feeds("exp", "add"), "NCC_X", "Fusion")])
    x = torch.arange(3.0)
    assert torch.compile(lambda x: (x + 1).exp(), backend=compiler)(x).equal((x + 1).exp())
    with pytest.raises(Exception, match="NCC_X: internal error in pass Fusion"):
        torch.compile(lambda x: torch.exp(x) + 1, backend=compiler)(x)


@pytest.mark.parametrize("backend", ["no_such_backend", "json:nothing", "no_such_module:f"])
def test_a_backend_that_does_not_exist_is_refused(backend):
    for make in (here, in_child):
        with pytest.raises(UsageError, match=f"--backend {backend}: must be"):
            make(backend)


def test_what_is_no_graph_is_refused():
    with pytest.raises(UsageError, match="is no single graph, `dslearn lint graph`"):
        capture(lambda x: x + 1 if x.sum() > 0 else x, torch.ones(2))
    with pytest.raises(UsageError, match="there is no graph"):
        capture(lambda x: 3, torch.ones(2))
    with pytest.raises(UsageError, match="input 0 is torch.complex64: must be a real tensor"):
        capture(lambda x: x + 1, torch.ones(2, dtype=torch.complex64))
