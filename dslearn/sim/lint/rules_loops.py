"""Loops that run on the device, their registers, and what the two cores must do alike.

Source: docs/reference/nki.md, "Language rules".
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from dslearn.sim.lint.module import own_nodes
from dslearn.sim.lint.rule import Hit, Rule
from dslearn.sim.lint.scope import Scope, arguments, short, text
from dslearn.sim.lint.wrapping import DYNAMIC_LOOPS, loop_body
from dslearn.sim.signatures import signatures

_LOOP = "def body(i):\n    {0}\nnl.fori_loop(0, 4, body)"

RULES = (
    Rule(
        id="register-arithmetic",
        level="error",
        what="no Python arithmetic on a loop index or another register",
        why="its value exists only on the device; the engines' sequencer takes it as an address",
        fix="compute in a (1, 1) int32 SBUF tile and pass that as scalar_offset",
        fires=_LOOP.format("n = i * 4"),
        legal=_LOOP.format("tile.ap([[64, 128], [1, 64]], scalar_offset=i)"),
    ),
    Rule(
        id="register-control",
        level="error",
        what="no register in if, while, int() or range()",
        why="Python decides while compiling, when the register has no value yet",
        fix="use nl.fori_loop(0, register, body) for a runtime `if` or loop",
        fires=_LOOP.format("nisa.memset(dst=tile, value=0.0 if i == 0 else 1.0)"),
        legal=_LOOP.format("nl.fori_loop(0, i, lambda j: nisa.memset(dst=tile, value=0.0))"),
    ),
    Rule(
        id="register-index",
        level="warn",
        what="no register in [...]",
        why="slices are computed while compiling",
        fix="use tensor.ap(pattern, scalar_offset=register)",
        fires=_LOOP.format("nisa.memset(dst=tile[:, nl.ds(i, 1)], value=0.0)"),
        legal="for i in range(4):\n    nisa.memset(dst=tile[:, nl.ds(i, 1)], value=0.0)",
    ),
    Rule(
        id="loop-form",
        level="error",
        what="fori_loop(lower, upper, body, step): body takes the index alone, step is positive",
        why="state passes through tensors only, so the body hands nothing on and the loop is None",
        fix="declare tensors before the loop and write into them",
        fires="def body(i, carry):\n    return carry\nnl.fori_loop(0, 4, body)",
        legal=_LOOP.format("nisa.memset(dst=tile, value=0.0)"),
    ),
    Rule(
        id="while-form",
        level="error",
        what="the body of while_loop returns the next register",
        why="the loop runs while that register is not 0",
        fix="end with `nisa.register_load(register, src=tile); return register`",
        fires="def body(r):\n    nisa.register_load(r, src=tile[0:1, 0:1])\n"
        "nl.while_loop(nisa.register_alloc(1), body)",
        legal="def body(r):\n    nisa.register_load(r, src=tile[0:1, 0:1])\n    return r\n"
        "nl.while_loop(nisa.register_alloc(1), body)",
    ),
    Rule(
        id="loop-in-no-reorder",
        level="error",
        what="no dynamic loop inside nl.no_reorder()",
        why="the two are documented not to mix",
        fix="put nl.no_reorder() inside the body",
        fires="with nl.no_reorder():\n"
        "    nl.fori_loop(0, 4, lambda i: nisa.memset(dst=tile, value=0.0))",
        legal="with nl.no_reorder():\n"
        "    for i in range(4):\n        nisa.memset(dst=tile, value=0.0)",
    ),
    Rule(
        id="lnc-divergence",
        level="warn",
        what="both cores issue the same instructions",
        why="they run one program: what one core skips, the other waits for",
        fix="let each core work on its own part: offsets and sizes from nl.program_id(0)",
        fires="if nl.program_id(0) == 0:\n    nisa.memset(dst=tile, value=0.0)",
        legal="start = nl.program_id(0) * 32\n"
        "nisa.memset(dst=tile[:, start : start + 32], value=0.0)",
    ),
)

_READS = frozenset(("int", "float", "bool", "range", "min", "max", "abs", "divmod", "round"))


def check(scope: Scope) -> Iterator[Hit]:
    """Registers where Python cannot know them, and loops that do not have the form."""
    for node in scope.nodes:
        yield from _arithmetic(scope, node)
        if isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert):
            yield from _test(scope, node)
        elif isinstance(node, ast.Subscript):
            if any(_register(scope, part) for part in ast.walk(node.slice)):
                yield Hit("register-index", node, f"`{text(node)}`")
        elif isinstance(node, ast.With):
            yield from _no_reorder(scope, node)
    for call, name in scope.calls:
        if scope.builtin(call.func) in _READS and any(_register(scope, a) for a in call.args):
            yield Hit("register-control", call, f"`{text(call)}`")
        if name in DYNAMIC_LOOPS:
            yield from _form(scope, call, name)


def _register(scope: Scope, node: ast.AST) -> bool:
    return isinstance(node, ast.expr) and scope.kinds.of(node) == "register"


def _arithmetic(scope: Scope, node: ast.AST) -> Iterator[Hit]:
    parts: list[ast.expr] = []
    if isinstance(node, ast.BinOp):
        parts = [node.left, node.right]
    elif isinstance(node, ast.AugAssign):
        parts = [node.target, node.value]
    elif isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.Not):
        parts = [node.operand]
    if any(_register(scope, part) for part in parts):
        yield Hit("register-arithmetic", node, f"`{text(node)}`")


def _test(scope: Scope, node: ast.If | ast.While | ast.IfExp | ast.Assert) -> Iterator[Hit]:
    parts = [node.test]
    while parts:
        part = parts.pop()
        if isinstance(part, ast.BoolOp):
            parts += part.values
        elif isinstance(part, ast.UnaryOp):
            parts.append(part.operand)
        elif isinstance(part, ast.Compare):
            parts += [p for p in (part.left, *part.comparators) if not _none(part)]
        elif _register(scope, part):
            yield Hit("register-control", node.test, f"`{text(node.test)}`")
            return
    found = [p for p in ast.walk(node.test) if isinstance(p, ast.Name | ast.Call)]
    if any(scope.kinds.of(p) == "program" for p in found) and _issues(scope, node):
        yield Hit("lnc-divergence", node.test, f"`{text(node.test)}` decides who issues them")


def _none(node: ast.Compare) -> bool:
    return any(isinstance(p, ast.Constant) and p.value is None for p in node.comparators)


def _issues(scope: Scope, node: ast.AST) -> bool:
    """Whether instructions depend on a test: only then do the cores differ."""
    calls = (part.func for part in own_nodes(node) if isinstance(part, ast.Call))
    return any(scope.module.resolve(func).startswith("nki.isa.") for func in calls)


def _no_reorder(scope: Scope, node: ast.With) -> Iterator[Hit]:
    entered = (i.context_expr for i in node.items if isinstance(i.context_expr, ast.Call))
    if not any(scope.module.resolve(e.func) == "nki.language.no_reorder" for e in entered):
        return
    for part in ast.walk(node):
        name = scope.module.resolve(part.func) if isinstance(part, ast.Call) else ""
        if name in DYNAMIC_LOOPS or name == "nki.language.dynamic_range":
            yield Hit("loop-in-no-reorder", part, f"{short(name)} inside nl.no_reorder()")


def _form(scope: Scope, call: ast.Call, name: str) -> Iterator[Hit]:
    body = loop_body(scope.module, call)
    found = scope.project.find(scope.module, body) if body is not None else None
    function = body if isinstance(body, ast.Lambda) else found[1] if found else None
    if name.endswith("while_loop"):
        if isinstance(function, ast.FunctionDef) and not _returns(function):
            yield Hit("while-form", call, f"{function.name} returns nothing")
        return
    if not isinstance(scope.module.parents.get(call), ast.Expr | ast.Lambda):
        yield Hit("loop-form", call, f"the result of `{text(call)}` is used, and it is None")
    step = arguments(call, signatures()[name]).get("step")
    negative = isinstance(step, ast.UnaryOp) and isinstance(step.op, ast.USub)
    fixed = isinstance(step, ast.Constant) and not (isinstance(step.value, int) and step.value > 0)
    if step is not None and (negative or fixed or _register(scope, step)):
        yield Hit("loop-form", step, f"step={text(step)}", "use a positive compile-time integer")
    if isinstance(function, ast.FunctionDef | ast.Lambda):
        required = len(function.args.args) - len(function.args.defaults)
        if required > 1 or not (function.args.args or function.args.vararg):
            label = getattr(function, "name", "the body")
            yield Hit("loop-form", call, f"{label} takes {required} arguments, not the index alone")
    if isinstance(function, ast.FunctionDef) and _returns(function):
        yield Hit("loop-form", call, f"{function.name} returns a value, and nothing takes it")


def _returns(function: ast.FunctionDef) -> bool:
    """Whether a function returns a value."""
    values = [node.value for node in own_nodes(function) if isinstance(node, ast.Return)]
    return any(value is not None and ast.unparse(value) != "None" for value in values)
