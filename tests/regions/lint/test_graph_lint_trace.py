"""How functions are traced: what is run, whose line is named, what torch would make of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd

import dslearn
from dslearn.errors import UsageError
from dslearn.regions.lint import lint, lint_graph
from tests.support.graph_lint import broken

HERE = Path(__file__).name


def line_of(text: str) -> int:
    """The line of this file that ends with a comment."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return 1 + next(i for i, line in enumerate(lines) if line.endswith(f"# {text}"))


def test_the_package_hands_it_out():
    assert dslearn.lint is lint


def test_one_graph_is_not_run():
    pool = torch.zeros(4)

    def step(pool):
        return pool.add_(1).sum()

    assert lint(step, pool).operations == 2
    assert pool.tolist() == [0] * 4


def test_a_function_with_a_break_is_run_once_and_seen_to_its_end():
    pool = torch.zeros(4)

    def step(pool):
        pool.add_(1)
        print("between")  # here it breaks
        if pool.max() > 0:  # here it reads
            pool = pool.double()  # here it widens
        return pool[:, None] % 3

    found = {f.rule: f.line for f in lint(step, pool).findings}
    assert pool.tolist() == [1] * 4
    assert found == {
        "graph-break": line_of("here it breaks"),
        "data-dependent": line_of("here it reads"),
        "float64": line_of("here it widens"),
    }


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.linear.weight = nn.Parameter(torch.ones(8, 8).T)
        self.linear.weight.data = torch.ones(8, 16)[:, ::2]

    def forward(self, x):
        return self.linear(x)  # the user's line


def test_the_line_is_the_users_and_the_name_is_the_parameters():
    module = nn.Sequential(nn.ReLU(), Inner())
    (found,) = lint(module, torch.ones(1, 8)).findings
    assert found.message.startswith("1.linear.weight [8, 8] has strides [16, 2]: 256 bytes")
    assert (Path(found.path).name, found.line) == (HERE, line_of("the user's line"))


def helper(x):
    return x * 2 if os.getenv("DSLEARN_TEST_LINT") else x + 1  # read in a helper


def test_the_environment_is_seen_whether_set_or_not(monkeypatch):
    for value in (None, "1"):
        if value:
            monkeypatch.setenv("DSLEARN_TEST_LINT", value)
        (found,) = lint(lambda x: helper(x), torch.ones(2)).findings
        assert found.rule == "environment-read"
        assert found.line == line_of("read in a helper")

    def breaks(x):
        print("no graph")
        return helper(x)

    assert broken(breaks, torch.ones(2)) == ["environment-read", "graph-break"]


def test_torch_may_read_the_environment(monkeypatch):
    def step(x):
        print("no graph")
        return torch.hub._get_torch_home(), x + 1

    assert broken(step, torch.ones(2)) == ["graph-break"]


def test_a_backend_lints_the_graph_that_it_was_given():
    reports = []

    def backend(module, inputs):
        reports.append(lint_graph(module, {"float64": "warn"}))
        return module.forward

    def step(x):
        return x.double().sum()

    torch.compile(step, backend=backend, fullgraph=True)(torch.ones(3))
    (found,) = reports[0].findings
    assert (found.rule, found.level, Path(found.path).name) == ("float64", "warn", HERE)
    assert reports[0].errors == 0


def test_the_graph_that_autograd_made_can_be_linted_too():
    reports = []

    def compiler(module, inputs):
        reports.append(lint_graph(module))
        return module.forward

    def step(x, pool, row):
        pool.index_copy_(0, row, x.to(torch.float8_e4m3fn).view(torch.uint8))
        return x % 2

    inputs = torch.ones(1, 4), torch.zeros(4, 4, dtype=torch.uint8), torch.tensor([1])
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(step, backend=aot_autograd(fw_compiler=compiler), fullgraph=True)(*inputs)
    assert [f.rule for f in reports[0].findings] == ["fp8-value"]
    assert Path(reports[0].findings[0].path).name == HERE


def test_levels_replace_a_rules_own():
    step, x = (lambda x: x.double()), torch.ones(2)
    assert lint(step, x).errors == 1
    assert lint(step, x, levels={"float64": "warn"}).errors == 0
    assert lint(step, x, levels={"float64": "off"}).findings == ()
    with pytest.raises(UsageError, match="no such rule"):
        lint(step, x, levels={"float46": "off"})
    with pytest.raises(UsageError, match="must be error, warn or off"):
        lint(step, x, levels={"float64": "loud"})


def test_comments_allow_one_rule_with_a_reason():
    def step(x):
        y = x % 3  # graph: allow int-division positions stay below 2^20
        # graph: allow int-division,int64-arithmetic as above
        y = y + x % 5
        return y + x // 7  # counted

    (found,) = lint(step, torch.ones(4, dtype=torch.int64)).findings
    assert (found.rule, found.line) == ("int-division", line_of("counted"))


def test_a_function_that_fails_is_the_callers_affair():
    with pytest.raises(UsageError, match="the function fails on these inputs: ValueError: no"):
        lint(_raises, torch.ones(2))
    with pytest.raises(UsageError, match="fails on these inputs"):
        lint(lambda x, w: x @ w, torch.ones(2, 3), torch.ones(2, 3))


def _raises(x):
    raise ValueError("no")


def test_shapes_are_enough():
    def step(x, w):
        return (x @ w).double()

    given = torch.ones(2, 4096, device="meta"), torch.ones(4096, 8192, device="meta")
    assert broken(step, *given) == ["float64"]

    def reads(x):
        return x * x.sum().item() if x.max() > 0 else x

    assert broken(reads, torch.ones(4, device="meta")) == ["data-dependent"]


def test_what_is_compiled_elsewhere_stays_compiled():
    counted = []

    def count(module, inputs):
        counted.append(module)
        return module.forward

    def step(x):
        return x + 1

    compiled = torch.compile(step, backend=count)
    compiled(torch.ones(2))
    for _ in range(12):  # more than torch keeps of one function
        assert broken(step, torch.ones(2)) == []
    compiled(torch.ones(2))
    assert len(counted) == 1


def test_methods_and_objects_are_followed():
    class State:
        def __init__(self) -> None:
            self.pool = {"keys": torch.ones(8, 4).T}

    class Layer:
        def step(self, x, state, *, scale=2.0):
            return x @ state.pool["keys"] * scale

    (found,) = lint(Layer().step, torch.ones(1, 4), State()).findings
    assert found.message.startswith("args[1].pool['keys'] [4, 8]")


def test_deep_graphs_are_no_trouble():
    weight = nn.Parameter(torch.ones(256, 256))

    def step(x, codes):
        for _ in range(200):
            x = x * weight[0] + x
            codes = codes + codes
        return x, codes.to(torch.uint8) + codes.to(torch.uint8), codes

    found = broken(step, torch.ones(1, 256), torch.ones(4, dtype=torch.int32))
    assert found == ["byte-assembly"]


def test_a_write_to_a_part_of_an_input_is_a_write_to_it():
    def step(q, other, new):
        q.split(8)[1].copy_(new)
        return other + 1

    pool = torch.zeros(32)
    found = lint(step, pool[:16], pool[8:24], torch.ones(8)).findings
    assert [one.rule for one in found] == ["aliased-views"]
