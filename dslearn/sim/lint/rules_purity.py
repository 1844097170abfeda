"""A kernel is a function of its arguments: it is compiled once and reused for equal ones.

Source: docs/reference/nki.md, "Language rules".
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from dslearn.sim.lint.module import FUNCTIONS
from dslearn.sim.lint.rule import Hit, Rule
from dslearn.sim.lint.scope import Scope, text

RULES = (
    Rule(
        id="impure-write",
        level="error",
        what="a kernel changes nothing outside itself",
        why="compiled kernels are reused: the second call would change nothing",
        fix="return the value, or keep it in a local variable",
        fires=("CALLS = []\n\n\n@nki.jit\ndef kernel(x):\n    CALLS.append(x.shape)\n    return x"),
        legal="@nki.jit\ndef kernel(x):\n    calls = []\n    calls.append(x.shape)\n    return x",
    ),
    Rule(
        id="impure-read",
        level="error",
        what="a kernel reads no environment, clock, random source or file",
        why="it is compiled once per shapes, dtypes and arguments: later values are never seen",
        fix="pass the value as an argument",
        fires=(
            'import os\n\n\n@nki.jit\ndef kernel(x):\n    n = int(os.environ["TILE"])\n    return x'
        ),
        legal="import os\n\n\n@nki.jit\ndef kernel(x, n):\n    return x",
    ),
)

_SOURCES = (
    ["os.environ", "os.getenv", "os.urandom", "os.getpid", "sys.argv", "random", "secrets", "uuid"]
    + ["time", "numpy.random", "torch.rand", "torch.randn", "torch.randint"]
    + ["datetime.datetime.now", "datetime.datetime.utcnow", "datetime.date.today"]
)
_MUTATORS = frozenset(
    ["append", "extend", "insert", "remove", "pop", "popitem", "clear", "update", "setdefault"]
    + ["add", "discard", "sort"]
)


def check(scope: Scope) -> Iterator[Hit]:
    """Reads and writes of what is not an argument."""
    for node, name in scope.references:
        source = next((s for s in _SOURCES if name == s or name.startswith(s + ".")), None)
        if source:
            yield Hit("impure-read", node, f"`{text(node)}`")
    for node in scope.nodes:
        if isinstance(node, ast.Call) and scope.builtin(node.func) in ("open", "input"):
            yield Hit("impure-read", node, f"`{text(node)}`")
        elif isinstance(node, ast.Global):
            yield Hit("impure-write", node, f"`global {', '.join(node.names)}`")
        elif isinstance(node, ast.Nonlocal):
            away = [name for name in node.names if not _own(scope, node, name)]
            if away:
                yield Hit("impure-write", node, f"`nonlocal {', '.join(away)}`")
        elif isinstance(node, ast.Subscript | ast.Attribute) and _stored(scope, node):
            yield Hit("impure-write", node, f"`{text(node)}` is written")


def _stored(scope: Scope, node: ast.Subscript | ast.Attribute) -> bool:
    """Whether `node` changes something outside: assigned, deleted, or a call such as .append()."""
    if not _outside(scope, node.value):
        return False
    call = scope.module.parents.get(node)
    called = isinstance(call, ast.Call) and call.func is node
    mutates = isinstance(node, ast.Attribute) and node.attr in _MUTATORS and called
    return mutates or not isinstance(node.ctx, ast.Load)


def _outside(scope: Scope, node: ast.AST) -> bool:
    """Whether `node` is a variable of the file, or of a function around the kernel."""
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    if not isinstance(node, ast.Name):
        return False
    owner = scope.module.owner(node)
    if owner is not None:
        return not scope.inside(owner)
    return node.id in scope.module.names


def _own(scope: Scope, node: ast.Nonlocal, name: str) -> bool:
    """Whether a nonlocal variable belongs to the kernel itself."""
    around = [up for up in scope.module.ancestors(node) if isinstance(up, FUNCTIONS)]
    owners = [up for up in around[1:] if name in scope.module.bound.get(up, {})]
    return bool(owners) and scope.inside(owners[0])
