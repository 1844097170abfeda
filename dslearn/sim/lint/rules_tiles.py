"""Tensors are no numbers: no Python arithmetic on them, and their values are not known.

Source: docs/reference/nki.md, "Tensors and views".
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from dslearn.sim.lint.rule import Hit, Rule
from dslearn.sim.lint.scope import Scope, text

RULES = (
    Rule(
        id="tile-arithmetic",
        level="error",
        what="no Python operators on tensors",
        why="an instruction needs a destination, which `a + b` does not name",
        fix="use nisa.tensor_tensor or nisa.tensor_scalar with a dst",
        fires="nisa.tensor_copy(dst=tile, src=tile * 2.0)",
        legal="nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)",
    ),
    Rule(
        id="tile-value",
        level="error",
        what="no tensor element in if, while, int(), float() or range()",
        why="Python runs while compiling, when memory holds nothing yet",
        fix="load it into a register and use nl.fori_loop(0, register, body), or select by a mask",
        fires="if tile[0, 0]:\n    n = 2",
        legal="if tile.shape[0]:\n    n = 2",
    ),
)

_READS = frozenset(("int", "float", "bool", "range", "round"))
_ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


def check(scope: Scope) -> Iterator[Hit]:
    """Operators on tensors, and elements that Python would have to know."""
    for node in scope.nodes:
        if any(_tile(scope, part) for part in _operands(node)):
            yield Hit("tile-arithmetic", node, f"`{text(node)}`")
        elif isinstance(node, ast.If | ast.While | ast.IfExp):
            test = node.test.operand if isinstance(node.test, ast.UnaryOp) else node.test
            if isinstance(test, ast.Subscript) and _tile(scope, test):
                yield Hit("tile-value", test, f"`{text(test)}` decides")
        elif isinstance(node, ast.Call) and _reads(scope, node):
            yield Hit("tile-value", node, f"`{text(node)}`")


def _operands(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.AugAssign):
        return [node.target, node.value]
    if isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.Not):
        return [node.operand]
    if isinstance(node, ast.Compare) and any(isinstance(op, _ORDER) for op in node.ops):
        return [node.left, *node.comparators]
    return []


def _reads(scope: Scope, call: ast.Call) -> bool:
    return scope.builtin(call.func) in _READS and any(_tile(scope, part) for part in call.args)


def _tile(scope: Scope, node: ast.expr) -> bool:
    return scope.kinds.of(node) == "tile"
