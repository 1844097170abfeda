"""What every check works with: one piece of kernel code and the questions rules ask about it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property

from dslearn.sim.lint.kinds import Kinds
from dslearn.sim.lint.module import Module
from dslearn.sim.lint.project import Project, Unit, body_nodes
from dslearn.sim.signatures import Signature, signatures


class Scope:
    """A `Unit` with its nodes; `name` is the kernel's, for messages."""

    def __init__(self, project: Project, unit: Unit, kinds: Kinds) -> None:
        self.project = project
        self.unit = unit
        self.kinds = kinds
        self.module: Module = unit.module
        self.name = getattr(unit.node, "name", "a lambda")

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Every node that is traced, the function itself first."""
        return list(body_nodes(self.unit.node))

    @cached_property
    def calls(self) -> list[tuple[ast.Call, str]]:
        """Every call with the dotted name of what it calls ('' when unknown)."""
        found = [node for node in self.nodes if isinstance(node, ast.Call)]
        return [(node, self.module.resolve(node.func)) for node in found]

    @cached_property
    def references(self) -> list[tuple[ast.AST, str]]:
        """Every name or dotted name that is read and resolves, longest only."""
        found: list[tuple[ast.AST, str]] = []
        for node in self.nodes:
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
                name = self.module.resolve(node)
                above = self.module.parents.get(node)
                if name and not (isinstance(above, ast.Attribute) and self.module.resolve(above)):
                    found.append((node, name))
        return found

    def builtin(self, node: ast.AST) -> str:
        """The Python builtin that `node` names, '' when the file means something else by it."""
        if not isinstance(node, ast.Name) or self.module.values(node):
            return ""
        return "" if node.id in self.module.aliases else node.id

    def inside(self, node: ast.AST) -> bool:
        """Whether `node` is this piece of kernel code or lies in it."""
        return node is self.unit.node or self.unit.node in self.module.ancestors(node)

    def guarded(self, node: ast.AST) -> bool:
        """Whether an `if` around `node` asks which hardware generation this is."""
        around = self.module.ancestors(node)
        tests = (ast.unparse(up.test) for up in around if isinstance(up, ast.If | ast.IfExp))
        return any("nc_version" in test for test in tests)


def arguments(call: ast.Call, signature: Signature) -> dict[str, ast.expr]:
    """Parameter name -> expression, for what a call passes visibly."""
    given: dict[str, ast.expr] = {}
    for parameter, value in zip(signature.parameters, call.args, strict=False):
        if isinstance(value, ast.Starred):
            break
        given[parameter.name] = value
    return given | {word.arg: word.value for word in call.keywords if word.arg}


def known_calls(scope: Scope) -> Iterator[tuple[ast.Call, Signature, dict[str, ast.expr]]]:
    """The calls whose signature is published, with their arguments by parameter name."""
    for call, name in scope.calls:
        signature = signatures().get(name)
        if signature is not None:
            yield call, signature, arguments(call, signature)


def text(node: ast.AST) -> str:
    """Source of `node` on one short line."""
    line = " ".join(ast.unparse(node).split())
    return line if len(line) <= 48 else line[:45] + "..."


def short(dotted: str) -> str:
    """`nki.language.add` as it is usually written: `nl.add`."""
    for long, brief in (("nki.language.", "nl."), ("nki.isa.", "nisa.")):
        if dotted.startswith(long):
            return brief + dotted.removeprefix(long)
    return dotted
