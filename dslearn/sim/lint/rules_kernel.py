"""Where a kernel meets the host and other kernels: its arguments, its results, its classes.

Source: docs/reference/nki.md, "Language rules".
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from dslearn.sim.lint.module import Module, own_nodes
from dslearn.sim.lint.project import Project
from dslearn.sim.lint.rule import Hit, Rule
from dslearn.sim.lint.scope import Scope, arguments, text
from dslearn.sim.lint.wrapping import decorated
from dslearn.sim.signatures import signatures

RULES = (
    Rule(
        id="keyword-only",
        level="error",
        what="no keyword-only parameters in a kernel's signature",
        why="refused since 0.3",
        fix="remove the `*`",
        fires="@nki.jit\ndef kernel(x, *, eps=1e-6):\n    return x",
        legal="@nki.jit\ndef kernel(x, eps=1e-6):\n    return x",
    ),
    Rule(
        id="list-argument",
        level="error",
        what="a kernel takes no lists",
        why="compile-time arguments are the key of the compile cache, and lists can change",
        fix="pass a tuple",
        fires="@nki.jit\ndef kernel(x, sizes: list[int]):\n    return x",
        legal="@nki.jit\ndef kernel(x, sizes: tuple[int, ...]):\n    return x",
    ),
    Rule(
        id="argument-kind",
        level="error",
        what="a kernel takes tensors, numbers, strings, tuples, None, NKIObjects and functions",
        why="nothing else has a place in the key of the compile cache",
        fix="derive the class from nl.NKIObject alone, or pass the fields one by one",
        fires=(
            "class Config:\n    n = 2\n\n\n@nki.jit\ndef kernel(x, config: Config):\n    return x"
        ),
        legal=(
            "class Config(nl.NKIObject):\n    n = 2\n\n\n"
            "@nki.jit\ndef kernel(x, config: Config):\n    return x"
        ),
    ),
    Rule(
        id="class-base",
        level="error",
        what="kernel code makes objects only of classes that derive from nl.NKIObject alone",
        why="the compiler documents no other classes but Enums",
        fix="derive from nl.NKIObject, or use a tuple",
        fires="class Pair:\n    n = 2\n\n\n@nki.jit\ndef kernel(x):\n    Pair()\n    return x",
        legal=(
            "class Pair(nl.NKIObject):\n    n = 2\n\n\n"
            "@nki.jit\ndef kernel(x):\n    Pair()\n    return x"
        ),
    ),
    Rule(
        id="nested-jit",
        level="error",
        what="a kernel calls plain functions, not other kernels",
        why="what is called is inlined; only the host can start a compiled program",
        fix="remove @nki.jit from the callee and wrap it where the host launches it: nki.jit(f)(x)",
        fires=(
            "@nki.jit\ndef part(x):\n    return x\n\n\n@nki.jit\ndef kernel(x):\n    return part(x)"
        ),
        legal="def part(x):\n    return x\n\n\n@nki.jit\ndef kernel(x):\n    return part(x)",
    ),
    Rule(
        id="return-buffer",
        level="error",
        what="what a kernel returns was allocated in nl.shared_hbm",
        why="the host reads HBM; SBUF, PSUM and private HBM end with the kernel",
        fix="allocate the result with buffer=nl.shared_hbm and dma_copy into it",
        fires="return tile",
        legal="result = nl.ndarray((128, 64), nl.float32, buffer=nl.shared_hbm)\nreturn result",
    ),
    Rule(
        id="return-nested",
        level="warn",
        what="results are allocated at the top of a kernel, not in a loop or an `if`",
        why="older compilers refuse it, and the signature of the program depends on it",
        fix="allocate before the loop or the `if`",
        fires="if n == 4:\n    result = nl.ndarray((4, 4), nl.int8, buffer=nl.shared_hbm)\n"
        "return result",
        legal="result = nl.ndarray((4, 4), nl.int8, buffer=nl.shared_hbm)\nreturn result",
    ),
)

_ALLOCATE = frozenset(
    f"nki.language.{name}" for name in ("ndarray", "zeros", "ones", "full", "rand")
)
_ENUMS = frozenset(f"enum.{name}" for name in ("Enum", "IntEnum", "StrEnum", "Flag", "IntFlag"))
_BLOCKS = (ast.For, ast.While, ast.If)


def check(scope: Scope) -> Iterator[Hit]:
    """The signature and the results of a kernel, and what kernel code calls and makes."""
    node = scope.unit.node
    if scope.unit.root and isinstance(node, ast.FunctionDef):
        yield from _signature(scope, node)
        yield from _returns(scope, node)
    yield from _nested(scope)
    for call, _ in scope.calls:
        found = scope.project.find_class(scope.module, call.func)
        if found and found[1] in scope.project.made and not allowed(scope.project, *found):
            yield Hit("class-base", call, f"`{text(call)}`: {found[1].name} is another class")


def allowed(project: Project, module: Module, node: ast.ClassDef) -> bool:
    """Whether a class is an Enum, or derives from nl.NKIObject alone; unknown bases pass."""
    if not node.bases:
        return False
    for base in node.bases:
        name = module.resolve(base) or ("object" if ast.unparse(base) == "object" else "")
        found = project.find_class(module, base)
        if found and not allowed(project, *found):
            return False
        if not found and name not in ("", "nki.language.NKIObject", *_ENUMS):
            return False
    return True


def _signature(scope: Scope, node: ast.FunctionDef) -> Iterator[Hit]:
    if node.args.kwonlyargs:
        names = ", ".join(arg.arg for arg in node.args.kwonlyargs)
        yield Hit("keyword-only", node.args.kwonlyargs[0], f"`*` before {names} in {node.name}")
    for arg in (*node.args.posonlyargs, *node.args.args):
        for part in ast.walk(arg.annotation) if arg.annotation else ():
            yield from _annotated(scope, arg, part)
    for default in (*node.args.defaults, *(d for d in node.args.kw_defaults if d)):
        if isinstance(default, ast.List | ast.ListComp):
            yield Hit("list-argument", default, f"default `{text(default)}` in {node.name}")
        elif isinstance(default, ast.Dict | ast.Set | ast.DictComp | ast.SetComp):
            yield Hit("argument-kind", default, f"default `{text(default)}` in {node.name}")


def _annotated(scope: Scope, arg: ast.arg, part: ast.AST) -> Iterator[Hit]:
    name = scope.builtin(part) or scope.module.resolve(part).rpartition("typing.")[2].lower()
    if name == "list":
        yield Hit("list-argument", arg, f"`{text(arg)}`")
    elif name in ("dict", "set", "frozenset"):
        yield Hit("argument-kind", arg, f"`{text(arg)}`")
    elif isinstance(part, ast.Name | ast.Attribute):
        found = scope.project.find_class(scope.module, part)
        if found and not allowed(scope.project, *found):
            yield Hit("argument-kind", arg, f"`{text(arg)}`: {found[1].name} is another class")


def _nested(scope: Scope) -> Iterator[Hit]:
    for node, name in scope.references:
        if name == "nki.jit":
            yield Hit("nested-jit", node, f"`nki.jit` inside {scope.name}")
    for node in scope.nodes:
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            found = scope.project.find(scope.module, node)
            # one that is defined in here was reported at its own decorator
            if (
                found
                and decorated(*found)
                and (found[1] is scope.unit.node or not scope.inside(found[1]))
            ):
                yield Hit("nested-jit", node, f"{scope.name} uses the kernel {text(node)}")


def _returns(scope: Scope, node: ast.FunctionDef) -> Iterator[Hit]:
    for statement in own_nodes(node):
        if isinstance(statement, ast.Return) and statement.value is not None:
            whole = statement.value
            for part in whole.elts if isinstance(whole, ast.Tuple | ast.List) else [whole]:
                yield from _result(scope, part)


def _viewed(scope: Scope, node: ast.expr) -> ast.expr:
    """The tensor that `node` is a view of, or `node` itself."""
    while scope.kinds.of(node) == "tile":
        inner = node.func if isinstance(node, ast.Call) else node
        if not isinstance(inner, ast.Attribute | ast.Subscript) or scope.module.resolve(inner):
            break
        node = inner.value
    return node


def _result(scope: Scope, part: ast.expr) -> Iterator[Hit]:
    base = _viewed(scope, part)
    values = scope.module.values(base) if isinstance(base, ast.Name) else [base]
    for value in values:
        called = scope.module.resolve(value.func) if isinstance(value, ast.Call) else ""
        if not isinstance(value, ast.Call) or called not in _ALLOCATE:
            continue
        around = scope.module.ancestors(value)
        buffer = arguments(value, signatures()[called]).get("buffer")
        name = scope.module.resolve(buffer) if buffer is not None else "nki.language.sbuf"
        if name and name != "nki.language.shared_hbm":
            where = "nl." + name.rpartition(".")[2]
            yield Hit("return-buffer", part, f"{scope.name} returns `{text(part)}`, in {where}")
        elif any(isinstance(up, _BLOCKS) and scope.inside(up) for up in around):
            yield Hit("return-nested", value, f"`{text(part)}` is returned by {scope.name}")
