"""The checks in the source of dslearn/sim, and code of it in which each has a switch.

A check is a `raise`; one of the conditions that are joined by `or` in front of a `raise`; or a call
of a function that only checks.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType

SIM = Path(__file__).resolve().parents[1] / "dslearn" / "sim"
# Not the simulator of kernels: the source lint, the cost model, and how the stand-in is started.
OTHERS = ("lint", "cost", "install.py", "child.py", "rules.py")
SWITCH = "_mutate_checks"  # the name of the switch in each module
# Functions that make an exception, and their rule.
_BY_MAKER = {"trn3": "platform", "unknown": "name",
             "_refuse": "not-simulated", "_no_random": "not-simulated"}  # fmt: skip


@dataclass
class Check:
    """A check in the source: its place, its rule if the text tells, its kind; who saw it refuse."""

    place: str
    rule: str
    kind: str
    tests: list[str] = field(default_factory=list)
    verdict: str = "NOT REACHED"

    def __str__(self) -> str:
        return f"{self.place} {self.rule or '-'} ({self.kind})"


class Finder(ast.NodeTransformer):
    """Lists the checks of one file and puts a switch at each."""

    def __init__(
        self, path: Path, checkers: dict[str, str], rules: set[str], found: list[Check]
    ) -> None:
        self.path, self.checkers, self.rules, self.found = path, checkers, rules, found
        self.function = ""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Remember where we are."""
        before, self.function = self.function, node.name
        self.generic_visit(node)
        self.function = before
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        """Conditions in front of a raise, one by one."""
        test, last = node.test, node.body[-1]
        either = isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or)
        if either and isinstance(last, ast.Raise) and isinstance(last.exc, ast.Call):
            for i, value in enumerate(test.values):
                number = self._add(value, _rule(last.exc, self.rules), f"condition {i + 1}")
                on, holds = self._call("on", number), self._call("holds", number, value)
                test.values[i] = ast.BoolOp(op=ast.And(), values=[on, holds])
        self.generic_visit(node)
        return node

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        """`if refuses: raise`."""
        if not isinstance(node.exc, ast.Call) or hasattr(builtins, _last(node.exc.func)):
            return node  # an error that goes on, or Python's own
        number = self._add(node, _rule(node.exc, self.rules), "raise")
        return ast.If(test=self._call("refuses", number), body=[node], orelse=[])

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        """`if on: check(...)`, noting when it raises."""
        call = node.value
        if not (isinstance(call, ast.Call) and _last(call.func) in self.checkers):
            return node
        number = self._add(node, self.checkers[_last(call.func)], f"call of {_last(call.func)}")
        note = ast.Expr(self._call("refuses", number))
        handler = ast.ExceptHandler(
            type=ast.Name("ValueError", ast.Load()), name=None, body=[note, ast.Raise()]
        )
        guarded = ast.Try(body=[node], handlers=[handler], orelse=[], finalbody=[])
        return ast.If(test=self._call("on", number), body=[guarded], orelse=[])

    def _add(self, node: ast.expr | ast.stmt, rule: str, kind: str) -> int:
        place = f"{self.path.relative_to(SIM)}:{node.lineno} {self.function}"
        self.found.append(Check(place, rule, kind))
        return len(self.found) - 1

    def _call(self, method: str, number: int, *values: ast.expr) -> ast.expr:
        function = ast.Attribute(ast.Name(SWITCH, ast.Load()), method, ast.Load())
        return ast.Call(func=function, args=[ast.Constant(number), *values], keywords=[])


def _rule(error: ast.Call, rules: set[str]) -> str:
    """The rule that an exception names, "" if the text does not tell."""
    named = [word.value for word in error.keywords if word.arg == "rule"]
    for word in (*named, *reversed(error.args)):
        if isinstance(word, ast.Constant) and word.value in rules:
            return str(word.value)
    return _BY_MAKER.get(_last(error.func), "")


def _last(function: ast.expr) -> str:
    """The last part of a dotted name."""
    return getattr(function, "attr", "") or getattr(function, "id", "")


def sources() -> list[Path]:
    """The files of the simulator."""
    return [p for p in sorted(SIM.rglob("*.py")) if p.relative_to(SIM).parts[0] not in OTHERS]


def checkers(trees: Sequence[ast.Module], rules: set[str]) -> dict[str, str]:
    """Functions that return nothing, write nothing and refuse; their rule, if it is one."""
    found: dict[str, set[str]] = {}
    functions = [n for tree in trees for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    before = -1
    while before != len(found):
        before = len(found)
        for function in functions:
            nothing = isinstance(function.returns, ast.Constant) and function.returns.value is None
            if nothing and _only_checks(function):
                broken = set(_broken(function, found, rules))
                if broken:
                    found[function.name] = broken
    return {name: min(broken) if len(broken) == 1 else "" for name, broken in found.items()}


def _only_checks(function: ast.FunctionDef) -> bool:
    targets = [
        target
        for node in ast.walk(function)
        if isinstance(node, ast.Assign | ast.AugAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    calls = [_last(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)]
    writes = any(isinstance(target, ast.Attribute | ast.Subscript) for target in targets)
    return not writes and "store" not in calls and "emit" not in calls


def _broken(
    function: ast.FunctionDef, known: dict[str, set[str]], rules: set[str]
) -> Iterator[str]:
    """The rules that `function` refuses by, itself or through those that are `known`."""
    for node in ast.walk(function):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield _rule(node.exc, rules)
        elif isinstance(node, ast.Call):
            yield from known.get(_last(node.func), ())


def switched() -> tuple[list[Check], dict[str, CodeType]]:
    """All checks, and by file the code with switches."""
    rules_tree = ast.parse((SIM / "rules.py").read_text(encoding="utf-8"))
    texts = (n.value for n in ast.walk(rules_tree) if isinstance(n, ast.Constant))
    rules = {text for text in texts if isinstance(text, str) and " " not in text}
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sources()}
    names = checkers(list(trees.values()), rules)
    found: list[Check] = []
    codes = {}
    for path, tree in trees.items():
        changed = ast.fix_missing_locations(Finder(path, names, rules, found).visit(tree))
        codes[str(path)] = compile(changed, str(path), "exec", dont_inherit=True)
    return found, codes
