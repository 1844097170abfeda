"""Which Python the kernel compiler reads: values, comparisons and statements.

Source: docs/reference/nki.md, "Language rules".
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from dslearn.sim.lint.rule import Hit, Rule
from dslearn.sim.lint.scope import Scope, short, text
from dslearn.sim.signatures import enum_names

RULES = (
    Rule(
        id="identity-test",
        level="error",
        what="`is` and `is not` are not in the language",
        why="refused since 0.3: values become compile-time constants, compared by value",
        fix="compare with == or !=",
        fires="if n is not None:\n    n = 2",
        legal="if n != None:\n    n = 2",
    ),
    Rule(
        id="try-except",
        level="error",
        what="no `try`",
        why="a kernel is compiled, not run: nothing can be caught on the device",
        fix="test the condition first, or let the error stop the compilation",
        fires="try:\n    n = 2\nexcept ValueError:\n    n = 3",
        legal="n = 2 if x.shape[0] > 2 else 3",
    ),
    Rule(
        id="set-value",
        level="error",
        what="no sets",
        why="compile-time containers are tuples, lists and dicts with string keys",
        fix="use a tuple",
        fires="if n in {1, 2}:\n    n = 2",
        legal="if n in (1, 2):\n    n = 2",
    ),
    Rule(
        id="generator",
        level="error",
        what="no generators, no `async`",
        why="a function that is called is inlined, so it cannot be left half-way",
        fix="return a tuple or a list",
        fires="def parts():\n    yield 1\nn = 2",
        legal="def parts():\n    return (1,)\nn = 2",
    ),
    Rule(
        id="generator-expression",
        level="warn",
        what="generator expressions may not be read",
        why="the language has no generators, and nothing documents this one as an exception",
        fix="write a list comprehension",
        fires="n = sum(k for k in range(4))",
        legal="n = sum([k for k in range(4)])",
    ),
    Rule(
        id="dict-key",
        level="error",
        what="dict keys are strings",
        why="the compiler documents no other keys",
        fix="use string keys, or a tuple or list indexed by number",
        fires="sizes = {0: 64, 1: 32}",
        legal='sizes = {"first": 64, "second": 32}',
    ),
    Rule(
        id="value-range",
        level="error",
        what="numbers are 32-bit integers and fp32; no complex numbers, no bytes",
        why="that is all a register or an immediate operand holds",
        fix="stay within 32 bits; put larger constants into a tensor",
        fires="n = 1 << 2 if n else 0x1FFFFFFFF",
        legal="n = 1 << 2 if n else 0x1FFFFFFF",
    ),
    Rule(
        id="enum-order",
        level="error",
        what="Enum members are compared with == and != only",
        why="the compiler documents no order among them",
        fix="compare with ==, or with several of them joined by `or`",
        fires="if nisa.engine.vector > nisa.engine.scalar:\n    n = 2",
        legal="if nisa.engine.vector != nisa.engine.scalar:\n    n = 2",
    ),
)

_FP32_MAX = 3.4028235e38
_HALTING = (ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFor, ast.AsyncWith, ast.AsyncFunctionDef)


def check(scope: Scope) -> Iterator[Hit]:
    """Statements and values outside the language."""
    for node in scope.nodes:
        if isinstance(node, ast.Compare):
            yield from _compare(scope, node)
        elif isinstance(node, ast.Try | ast.TryStar):
            yield Hit("try-except", node, "a `try` in kernel code")
        elif isinstance(node, _HALTING):
            yield Hit("generator", node, f"`{type(node).__name__.lower()}` in kernel code")
        elif isinstance(node, ast.GeneratorExp):
            yield Hit("generator-expression", node, f"`{text(node)}`")
        elif isinstance(node, ast.Constant):
            yield from _constant(node)
        yield from _containers(scope, node)


def _compare(scope: Scope, node: ast.Compare) -> Iterator[Hit]:
    if any(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
        yield Hit("identity-test", node, f"`{text(node)}`")
    ordered = any(isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for op in node.ops)
    members = [part for part in (node.left, *node.comparators) if _member(scope, part)]
    if ordered and members:
        yield Hit("enum-order", node, f"`{text(node)}` orders {text(members[0])}")


def _member(scope: Scope, node: ast.AST) -> bool:
    """Whether `node` is a member of an Enum; the hardware generations may be ordered."""
    if not isinstance(node, ast.Attribute):
        return False
    owner = scope.module.resolve(node.value)
    if owner in enum_names():
        return owner != "nki.isa.nc_version"
    found = scope.project.find(scope.module, node.value)
    if not found or not isinstance(found[1], ast.ClassDef):
        return False
    return any(found[0].resolve(base) in ("enum.Enum", "enum.StrEnum") for base in found[1].bases)


def _constant(node: ast.Constant) -> Iterator[Hit]:
    value = node.value
    if isinstance(value, complex | bytes):
        yield Hit("value-range", node, f"{value!r} is {type(value).__name__}")
    elif isinstance(value, int) and not -(2**31) <= value < 2**32:
        yield Hit("value-range", node, f"{value} needs more than 32 bits")
    elif isinstance(value, float) and abs(value) > _FP32_MAX:
        yield Hit("value-range", node, f"{value} is beyond fp32 (3.4028235e38)")


def _containers(scope: Scope, node: ast.AST) -> Iterator[Hit]:
    if isinstance(node, ast.Set | ast.SetComp | ast.Call) and _set(scope, node):
        yield Hit("set-value", node, f"`{text(node)}`")
    keys: list[ast.expr | None] = []
    if isinstance(node, ast.Dict):
        keys = node.keys
    elif isinstance(node, ast.DictComp):
        keys = [node.key]
    elif isinstance(node, ast.Subscript) and _dict(scope, node.value):
        keys = [node.slice]
    wrong = next((key for key in keys if key is not None and not_a_string(scope, key)), None)
    if wrong is not None:
        yield Hit("dict-key", wrong, f"key `{text(wrong)}`")


def _set(scope: Scope, node: ast.Set | ast.SetComp | ast.Call) -> bool:
    return not isinstance(node, ast.Call) or scope.builtin(node.func) in ("set", "frozenset")


def not_a_string(scope: Scope, key: ast.AST) -> bool:
    """Whether a dict key evidently is something else than a string."""
    if isinstance(key, ast.Constant):
        return not isinstance(key.value, str)
    if isinstance(key, ast.Attribute):
        return short(scope.module.resolve(key.value)).startswith("nisa.")
    if isinstance(key, ast.Name):
        loops = scope.module.values(key)
        return bool(loops) and all(_counts(scope, loop) for loop in loops)
    return isinstance(key, ast.Tuple)


def _counts(scope: Scope, value: ast.AST) -> bool:
    """Whether a name bound by `value` runs over `range(...)`."""
    if not isinstance(value, ast.For | ast.comprehension) or isinstance(value.target, ast.Tuple):
        return False
    return isinstance(value.iter, ast.Call) and scope.builtin(value.iter.func) == "range"


def _dict(scope: Scope, node: ast.AST) -> bool:
    values = scope.module.values(node) if isinstance(node, ast.Name) else []
    return bool(values) and all(
        isinstance(value, ast.Dict)
        or (isinstance(value, ast.Call) and scope.builtin(value.func) == "dict")
        for value in values
    )
