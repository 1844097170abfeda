"""One source file as the rules see it: its tree, and what a name in it stands for.

Names are resolved without importing anything. `resolve` turns `nisa.dma_copy` into the dotted name
`nki.isa.dma_copy`, whatever the file calls its imports; names that a function binds itself hide
the file's own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass
class Module:
    """A parsed file. `dotted` is its name inside `root`, the folder that imports start from."""

    path: Path
    root: Path
    dotted: str
    tree: ast.Module
    nodes: list[ast.AST] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    names: dict[str, list[ast.AST]] = field(default_factory=dict)
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    bound: dict[ast.AST, dict[str, list[ast.AST]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.nodes = list(ast.walk(self.tree))
        for parent in self.nodes:
            for child in ast.iter_child_nodes(parent):
                self.parents[child] = parent
        for node in self.nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                self.aliases.update(self._imported(node))
            for name, value in bindings(node):
                if isinstance(self.home(node), ast.ClassDef):
                    break
                scope = self.scope(node)
                here = self.names if scope is None else self.bound.setdefault(scope, {})
                here.setdefault(name, []).append(value)
        for name, values in self.names.items():
            if len(values) == 1 and isinstance(values[0], ast.Attribute | ast.Name):
                target = self.resolve(values[0])
                if target and target.startswith("nki."):
                    self.aliases.setdefault(name, target)

    def scope(self, node: ast.AST) -> Function | None:
        """The function that the names bound by `node` belong to; None at the top of the file."""
        if isinstance(node, ast.arg):
            node = self.parents[self.parents[node]]
            return node if isinstance(node, FUNCTIONS) else None
        return next((n for n in self.ancestors(node) if isinstance(n, FUNCTIONS)), None)

    def home(self, node: ast.AST) -> Function | ast.ClassDef | None:
        """The innermost function or class around `node`."""
        around = self.ancestors(node)
        return next((n for n in around if isinstance(n, (*FUNCTIONS, ast.ClassDef))), None)

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around `node`, innermost first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def owner(self, name: ast.Name) -> Function | None:
        """The function whose own name `name` is; None when it belongs to the file."""
        around = (n for n in self.ancestors(name) if isinstance(n, FUNCTIONS))
        return next((f for f in around if name.id in self.bound.get(f, {})), None)

    def values(self, name: ast.Name) -> list[ast.AST]:
        """Everything that is bound to `name` where it is read; empty when nothing is."""
        owner = self.owner(name)
        return (self.names if owner is None else self.bound[owner]).get(name.id, [])

    def resolve(self, node: ast.AST | None) -> str:
        """Dotted name that `node` stands for, the package `nki` in its new spelling; '' if none."""
        if isinstance(node, ast.Attribute):
            head = self.resolve(node.value)
            return canonical(f"{head}.{node.attr}") if head else ""
        if isinstance(node, ast.Name) and self.owner(node) is None:
            return self.aliases.get(node.id, "")
        return ""

    def definition(self, name: ast.Name) -> Definition | None:
        """The one function or class of this file that `name` stands for."""
        found = self.values(name)
        if len(found) == 1 and isinstance(found[0], DEFINITIONS):
            return found[0]
        return None

    def _imported(self, node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                whole = alias.asname is not None
                local = alias.asname or alias.name.split(".")[0]
                yield local, canonical(alias.name if whole else alias.name.split(".")[0])
            return
        base = node.module or ""
        if node.level:
            package = self.dotted.split(".")
            if self.path.name != "__init__.py":
                package = package[:-1]
            kept = package[: len(package) - node.level + 1]
            base = ".".join([*kept, base] if base else kept)
        for alias in node.names:
            full = f"{base}.{alias.name}" if base else alias.name
            yield alias.asname or alias.name, canonical(full)


def canonical(dotted: str) -> str:
    """`neuronxcc.nki.isa.constants.engine` and the like under the one name `nki.isa.engine`."""
    dotted = dotted.removeprefix("neuronxcc.") if dotted.startswith("neuronxcc.nki") else dotted
    if dotted.startswith("nki.isa.constants."):
        return "nki.isa." + dotted.removeprefix("nki.isa.constants.")
    return dotted


def bindings(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """(name, what is bound to it) for the names that `node` itself binds, imports excepted.

    The second part is the value where it is known as it stands, else the binding node.
    """
    if isinstance(node, DEFINITIONS):
        yield node.name, node
    elif isinstance(node, ast.arg):
        yield node.arg, node
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _targets(target, node.value)
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        yield from _targets(node.target, node.value)
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        yield from _targets(node.target, node)
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield from _targets(node.optional_vars, node)
    elif isinstance(node, ast.ExceptHandler) and node.name:
        yield node.name, node


def _targets(target: ast.AST, value: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple | ast.List):
        parts: list[ast.AST] = [target] * len(target.elts)
        same = isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts)
        if isinstance(value, ast.Tuple | ast.List) and same:
            parts = list(value.elts)
        for element, part in zip(target.elts, parts, strict=True):
            yield from _targets(element, part)
    elif isinstance(target, ast.Starred):
        yield from _targets(target.value, target)


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """`node` and everything below it but the functions and classes inside it."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (*FUNCTIONS, ast.ClassDef)):
            yield from own_nodes(child)
