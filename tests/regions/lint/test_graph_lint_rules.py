"""Every rule about graphs fires on what breaks it, alone, and leaves its legal twin in peace."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from dslearn.regions.lint import RULES, lint, lint_graph
from dslearn.regions.lint.examples import load
from tests.support.graph_lint import broken

I64, I32, U8 = torch.int64, torch.int32, torch.uint8
IDS = torch.ones(4, dtype=I64)


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.id)
def test_a_rule_fires_on_its_example_and_not_on_the_legal_twin(rule, capsys):
    function, inputs = load(rule.fires, f"{rule.id} fires")
    found = lint(function, *inputs).findings
    named = {finding.rule for finding in found}
    assert rule.id in named and len(named) == 1 + (rule.id == "allow-comment"), found
    for finding in found:
        assert finding.path == f"<{rule.id} fires>" and finding.level == RULES[finding.rule].level
        line = rule.fires.lstrip("\n").splitlines()[finding.line - 1]
        assert line.startswith("    "), f"{finding} is not inside the function: {line!r}"
    function, inputs = load(rule.legal, f"{rule.id} legal")
    assert lint(function, *inputs).findings == ()


def test_rules_say_what_why_and_what_to_do():
    for rule in RULES.values():
        assert rule.fires != rule.legal and re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.id)
        assert min(len(text.split()) for text in (rule.what, rule.why, rule.fix)) >= 3, rule.id
        assert not rule.fix.endswith(".") and not rule.why.endswith("."), rule.id


# Further forms: (rule, function that breaks it, the same thing done legally, their inputs).
FORMS = [
    ("data-dependent", lambda x: x[x > 0], lambda x: torch.where(x > 0, x, 0), [torch.rand(4)]),
    ("data-dependent", lambda x: x.nonzero(), lambda x: x.topk(2).indices, [torch.rand(4)]),
    ("data-dependent", lambda x: torch.unique(x), lambda x: x.sort().values, [torch.rand(4)]),
    ("data-dependent", lambda x: x[: int(x.sum())], lambda x: x[:2], [IDS]),
    (
        "data-dependent",
        lambda x: x + 1 if x.max() > 0 else x - 1,
        lambda x: torch.where(x.max() > 0, x + 1, x - 1),
        [torch.rand(4)],
    ),
    ("data-dependent", lambda x: x * x.tolist()[0], lambda x: x * x[0], [torch.rand(4)]),
    ("float64", lambda x: x + torch.ones(4, dtype=torch.float64), lambda x: x + 1, [torch.ones(4)]),
    (
        "fp8-value",
        lambda x: x.to(torch.float8_e4m3fn).float(),
        lambda x: x.to(torch.float8_e5m2).float(),
        [torch.ones(4)],
    ),
    (
        "bitcast-input",
        lambda x: x[2:].view(4, 2).view(I32),
        lambda x: (x[2:] + 1).view(4, 2).view(I32),
        [torch.ones(10)],
    ),
    (
        "byte-assembly",
        lambda x: x.to(U8) | (x.to(U8) << 4),
        lambda x: (x | (x << 4)).to(U8),
        [torch.ones(4, dtype=I32)],
    ),
    (
        "byte-assembly",
        lambda x, out: out[:2].copy_((x + 1).to(U8)),
        lambda x, out: out.copy_(torch.cat((x + 1, x)).to(U8)),
        [torch.ones(2, dtype=I32), torch.zeros(4, dtype=U8)],
    ),
    (
        "interleaved-narrowing",
        lambda x: x.view(4, 2)[:, 1].to(torch.int16),
        lambda x: x.view(4, 2).T.contiguous()[1].to(torch.int16),
        [torch.ones(8, dtype=I32)],
    ),
    (
        "interleaved-narrowing",
        lambda x: (x[::2] + 1).to(U8),
        lambda x: (x[:4] + 1).to(U8),
        [torch.ones(8, dtype=I32)],
    ),
    (
        "interleaved-narrowing",
        lambda x: x.view(4, 2).unbind(-1)[0].to(U8),
        lambda x: x.view(2, 4).unbind(0)[0].to(U8),
        [torch.ones(8, dtype=I32)],
    ),
    (
        "interleaved-narrowing",
        lambda x, out: out.copy_(x[::2]),
        lambda x, out: out.copy_(x[:4]),
        [torch.ones(8, dtype=I32), torch.zeros(4, dtype=U8)],
    ),
    ("int64-arithmetic", lambda x: x << 3, lambda x: x >> 3, [IDS]),
    ("int64-arithmetic", lambda x: x.prod(), lambda x: (x > 1).prod(), [IDS]),
    ("int64-arithmetic", lambda x: x.cumprod(0), lambda x: (x > 1).long().cumprod(0), [IDS]),
    ("int64-arithmetic", lambda x: x @ x, lambda x: (x & 255) @ (x & 255), [IDS]),
    (
        "int64-arithmetic",
        lambda x: torch.einsum("i,j->ij", x, x),
        lambda x: torch.einsum("i,j->ij", x & 255, x & 255),
        [IDS],
    ),
    (
        "int64-arithmetic",
        lambda x: torch.add(x, x, alpha=31),
        lambda x: torch.sub(x, x, alpha=1),
        [IDS],
    ),
    ("int64-arithmetic", lambda x: torch.addcmul(x, x, x), lambda x: x + x, [IDS]),
    (
        "int64-arithmetic",
        lambda x: x ^ (x >> 7),
        lambda x: x + (x >> 7),
        [IDS],
    ),
    ("int64-arithmetic", lambda x: x + 2**40, lambda x: x + 2**20, [IDS]),
    (
        "int64-arithmetic",
        lambda x: torch.arange(1 << 17) * (1 << 17),
        lambda x: torch.arange(1 << 17) * 100,
        [torch.ones(1)],
    ),
    ("int-division", lambda x: x // 3, lambda x: x.float() / 3, [IDS]),
    ("int-division", lambda x: x % 8, lambda x: x & 7, [torch.ones(4, dtype=I32)]),
    (
        "int-division",
        lambda x: x.clamp(0, 1 << 20) // 3,
        lambda x: x.clamp(0, (1 << 20) - 1) // 3,
        [IDS],
    ),
]


@pytest.mark.parametrize(("rule", "wrong", "legal", "inputs"), FORMS)
def test_other_forms(rule, wrong, legal, inputs):
    assert broken(wrong, *inputs) == [rule]
    assert broken(legal, *inputs) == []


def test_inputs_are_judged_by_what_they_are():
    wide, turned = torch.ones(4, dtype=torch.float64), torch.ones(2, 3).T
    assert broken(lambda x: x.float(), wide) == ["float64"]
    assert broken(lambda x: x.sum(), turned) == ["noncontiguous-input"]
    assert broken(lambda x: x.sum(), turned.contiguous()) == []
    assert broken(lambda x, unused: x + 1, torch.ones(4), wide) == []


def test_a_copy_is_counted_in_bytes():
    def step(x, w):
        return x.sum() + w.sum()

    (found,) = lint(step, torch.ones(3), torch.ones(64, 32, dtype=torch.bfloat16).T).findings
    assert found.message.startswith("args[1] [32, 64] has strides [1, 32]: 4,096 bytes")


def test_index_arithmetic_is_what_indices_are_for():
    def step(logits, table, base):
        best = logits.argmax(-1)
        chosen = logits.topk(3).indices
        order = torch.sort(logits, dim=-1, descending=True, stable=True).indices[..., :2]
        offset = torch.arange(len(logits)) * logits.shape[1]
        flat = (chosen + offset[:, None]).clamp(min=0)
        rows = base[:, None] * 4 + torch.arange(4)  # only finds rows
        seen = (best + 1 >= order[:, 0]) & (best != 3)
        return table[best] + table[rows].sum(1), logits.view(-1)[flat], seen

    inputs = torch.rand(2, 16), torch.rand(16, 8), torch.zeros(2, dtype=I64)
    assert broken(step, *inputs) == []
    assert broken(lambda x: x * 4, torch.zeros(2, dtype=I64)) == ["int64-arithmetic"]


def test_a_host_tensor_is_named_by_its_caller():
    table = torch.ones(128, 8)

    def step(ids):
        return table[ids]

    ids = torch.zeros(4, dtype=I64)
    assert broken(step, ids) == []
    (found,) = lint(step, ids, host=[table]).findings
    assert found.rule == "host-tensor" and "table lies in host memory: 4,096" in found.message


class Scaled(nn.Module):
    def __init__(self, rows: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(rows, 256))
        self.register_buffer("pool", torch.zeros(rows, 256))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.pool.mul_(2)  # a cache is no weight
        return x @ (self.weight * 2 + 1).T


def test_only_whole_weights_count_and_each_chain_once():
    (found,) = lint(Scaled(256), torch.ones(1, 256)).findings
    assert found.rule == "weight-work" and found.message.startswith("mul of weight [256, 256]")
    assert broken(Scaled(255), torch.ones(1, 256)) == []


def test_a_kernel_node_shows_its_grid():
    class Kernel(torch._ops.HigherOrderOperator):
        def __init__(self) -> None:
            # Not the name of the fake in tests.support.neuron: graphs find operators by name.
            super().__init__("kernel_with_a_grid")

        def __call__(self, **kwargs):
            return super().__call__(**kwargs)

    with FakeTensorMode(shape_env=ShapeEnv()):
        fake = torch.ones(2)
    for grid, expected in (((1,), ["launch-grid"]), ((2,), []), (2, []), ((2, 2), ["launch-grid"])):
        graph = torch.fx.Graph()
        x = graph.placeholder("x")
        x.meta["example_value"] = fake
        out = graph.create_node("call_function", Kernel(), (), {"grid": grid, "args": [x]})
        out.meta["example_value"] = fake
        graph.output(out)
        module = torch.fx.GraphModule({}, graph)
        assert [f.rule for f in lint_graph(module).findings] == expected, grid
