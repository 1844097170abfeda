"""Lint a function or a graph: every rule over its trace, findings in order of lines."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, fx

from dslearn import allowed
from dslearn.errors import UsageError
from dslearn.findings import Finding, Level, check_name, errors, shown
from dslearn.regions.lint import (
    rules_bytes,
    rules_dtypes,
    rules_flow,
    rules_inputs,
    rules_integers,
    rules_weights,
)
from dslearn.regions.lint.capture import capture
from dslearn.regions.lint.origin import of_input
from dslearn.regions.lint.place import Place
from dslearn.regions.lint.rule import Hit, Rule
from dslearn.regions.lint.trace import Trace
from dslearn.regions.tracing import trace

_FAMILIES = (
    rules_inputs,
    rules_dtypes,
    rules_bytes,
    rules_integers,
    rules_flow,
    rules_weights,
)
WORD = "graph"
_COMMENT = Rule(
    id="allow-comment",
    level="error",
    what="`# graph: allow` names rules that exist and gives a reason",
    why="an exception that nobody explained cannot be reviewed",
    fix="write `# graph: allow rule-id why this is right here`",
    fires="""
def step(x):
    return x % 1009  # graph: allow int-division

inputs = (torch.ones(8, dtype=torch.int64),)
""",
    legal="""
def step(x):
    return x % 1009  # graph: allow int-division a position, below 2^20

inputs = (torch.ones(8, dtype=torch.int64),)
""",
)
RULES: dict[str, Rule] = {rule.id: rule for family in _FAMILIES for rule in family.RULES} | {
    "allow-comment": _COMMENT
}
Levels = Mapping[str, str]  # rule -> "error", "warn" or "off"


@dataclass(frozen=True)
class Report:
    """What a run found, in the order of files and lines, and how many operations it looked at."""

    findings: tuple[Finding, ...]
    operations: int

    @property
    def errors(self) -> int:
        """How many findings are errors."""
        return errors(self.findings)


def lint(
    function: Callable[..., Any],
    *inputs: Any,
    levels: Levels | None = None,
    host: Iterable[Tensor] = (),
) -> Report:
    """Lint what `torch.compile(function)(*inputs)` would hand to the compiler.

    Nothing is run if the function is one graph. If it is not, it is run once on `inputs`, so that
    everything else in it is found too; what it overwrites is then overwritten.

    Args:
        function: a function, method or `nn.Module`, traced without gradients.
        inputs: its arguments, as in a real call; only shapes and dtypes matter.
        levels: rule -> "error", "warn" or "off", instead of the rule's own level.
        host: tensors that will live in host memory on the device machine.

    Raises:
        UsageError: an unknown rule or level, or a function that fails on these inputs.
    """
    _check_levels(levels or {})
    return _report(capture(function, inputs, host), levels or {})


def lint_graph(module: fx.GraphModule, levels: Levels | None = None) -> Report:
    """Lint a graph that `torch.compile` gave to a backend, inside that backend.

    Raises:
        UsageError: an unknown rule or level.
    """
    _check_levels(levels or {})
    return _report(Trace(trace(module, of_input).graph), levels or {})


def lint_aten(graph: fx.Graph) -> Report:
    """Lint a graph of ATen operations with `meta["val"]`, as `to_aten` and `carry` give it."""
    return _report(Trace(graph), {})


def _check_levels(levels: Levels) -> None:
    for name, level in levels.items():
        check_name(name, RULES, "--level")
        if level not in ("error", "warn", "off"):
            raise UsageError(f"--level {name}={level}: must be error, warn or off")


def _report(trace: Trace, levels: Levels) -> Report:
    hits = [hit for family in _FAMILIES for hit in family.check(trace)]
    found: set[Finding] = set()
    for path in {hit.place.path for hit in hits}:
        found |= _in_file(path, [hit for hit in hits if hit.place.path == path], levels)
    return Report(tuple(sorted(found)), len(trace.operations))


def _in_file(path: str, hits: list[Hit], levels: Levels) -> set[Finding]:
    """Findings in one file, with its comments applied."""
    comments = allowed.read("".join(linecache.getlines(path)), RULES, WORD)
    found = {
        _finding(hit, levels)
        for hit in hits
        if not comments.covers(hit.rule, hit.place.line, hit.place.line)
    }
    near = {hit.place.line for hit in hits}
    for line, column, message in comments.wrong:
        if {line, line + 1} & near:
            hit = Hit("allow-comment", Place(path, line), message)
            found.add(_finding(hit, levels, column))
    return {one for one in found if one is not None}


def _finding(hit: Hit, levels: Levels, column: int = 1) -> Finding | None:
    rule = RULES[hit.rule]
    level = levels.get(hit.rule, rule.level)
    if level == "off":
        return None
    path, line = hit.place
    where = path if path.startswith("<") else shown(Path(path))
    kind: Level = "warn" if level == "warn" else "error"
    return Finding(where, line, column, hit.rule, kind, hit.message, hit.fix or rule.fix)
