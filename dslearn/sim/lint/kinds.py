"""What an expression evidently is: a tensor, a register, or a program's number.

Only certainty counts: a name has a kind when everything that is bound to it has that kind, and
whatever could be a plain Python number has none.
Source: docs/reference/nki.md, "Tensors and views".
"""

from __future__ import annotations

import ast
from typing import Literal

from dslearn.sim.lint.module import Module
from dslearn.sim.signatures import TENSOR, signatures

Kind = Literal["tile", "register", "program", ""]

# Functions of nki.language that return no tensor.
_PLAIN = frozenset(
    ["is_hbm", "is_on_chip", "is_psum", "is_sbuf", "ds", "affine_range", "sequential_range"]
    + ["static_range", "dynamic_range", "fori_loop", "while_loop", "store", "program_id"]
    + ["num_programs", "program_ndim", "no_reorder", "device_print", "random_seed"]
)
_PLAIN_METHODS = frozenset({"is_contiguous", "get_pattern", "is_indirect"})
_TENSOR_ONLY = frozenset({"shape", "dtype", "buffer", "ap", "reshape", "strides"})


class Kinds:
    """Kinds of the expressions of one file; `registers` are parameters known to be registers."""

    def __init__(self, module: Module, registers: set[ast.arg]) -> None:
        self.module = module
        self.registers = registers
        self._names: dict[tuple[ast.AST, str], Kind | None] = {}

    def of(self, node: ast.AST | None) -> Kind:
        """The kind of an expression, '' when it is not evident."""
        if isinstance(node, ast.Name):
            return self._name(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.Subscript):
            return "tile" if self.of(node.value) == "tile" else ""
        if isinstance(node, ast.NamedExpr):
            return self.of(node.value)
        if isinstance(node, ast.IfExp):
            both = {self.of(node.body), self.of(node.orelse)}
            return both.pop() if len(both) == 1 else ""
        if isinstance(node, ast.BinOp):
            return "program" if "program" in (self.of(node.left), self.of(node.right)) else ""
        return ""

    def _call(self, node: ast.Call) -> Kind:
        name = self.module.resolve(node.func)
        module, _, last = name.rpartition(".")
        if name == "nki.language.program_id":
            return "program"
        if name == "nki.isa.register_alloc":
            return "register"
        if module == "nki.language" and name in signatures():
            return "" if last in _PLAIN else "tile"
        if isinstance(node.func, ast.Attribute) and self.of(node.func.value) == "tile":
            method = node.func.attr
            view = f"{TENSOR}.{method}" in signatures() or method == "reinterpret_cast"
            return "tile" if view and method not in _PLAIN_METHODS else ""
        return ""

    def _name(self, node: ast.Name) -> Kind:
        owner = self.module.owner(node)
        if owner is None:
            return ""
        key = (owner, node.id)
        if key not in self._names:
            self._names[key] = None  # being looked at: `x = x.reshape(...)` says nothing new
            kinds = {self._bound(value) for value in self.module.bound[owner][node.id]} - {None}
            self._names[key] = kinds.pop() if len(kinds) == 1 else ""
        return self._names[key] or ""

    def _bound(self, value: ast.AST) -> Kind | None:
        if isinstance(value, ast.arg):
            return self._parameter(value)
        if isinstance(value, ast.For):
            dynamic = "nki.language.dynamic_range"
            called = isinstance(value.iter, ast.Call) and self.module.resolve(value.iter.func)
            return "register" if called == dynamic and isinstance(value.target, ast.Name) else ""
        root = value
        while isinstance(root, ast.Call | ast.Attribute | ast.Subscript):
            root = root.func if isinstance(root, ast.Call) else root.value
        if isinstance(root, ast.Name) and isinstance(value, ast.Call | ast.Subscript):
            owner = self.module.owner(root)
            if owner and self._names.get((owner, root.id), "") is None:
                return None
        return self.of(value)

    def _parameter(self, node: ast.arg) -> Kind:
        if node in self.registers:
            return "register"
        if node.annotation is not None:
            named = {self.module.resolve(part) for part in ast.walk(node.annotation)}
            return "tile" if named & {TENSOR, "nki.typing.tensor"} else ""
        function = self.module.scope(node)
        if isinstance(self.module.parents.get(function or node), ast.ClassDef):
            return ""  # `self`, or something handed to an object
        for part in ast.walk(function) if function else ():
            if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
                same = part.value.id == node.arg and self.module.owner(part.value) is function
                if same and part.attr in _TENSOR_ONLY:
                    return "tile"
        return ""
