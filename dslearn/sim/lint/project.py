"""Which functions are kernel code: jitted ones, callers of `nl` and `nisa`, and what they call.

Kernels inline what they call, so the rules follow calls through one file and through the files it
imports from its own package. Ordinary Python beside the kernels (host wrappers, NumPy twins,
configurations) is not reached and no rule applies to it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dslearn.sim.lint.module import DEFINITIONS, Definition, Function, Module, own_nodes
from dslearn.sim.lint.wrapping import decorated, loop_body, wrapped, wraps

# What host code may call without being a kernel.
HOST = frozenset(
    ["nki.isa.get_nc_version", "nki.isa.get_nc_sub_version", "nki.language.DType"]
    + [f"nki.language.is_{place}" for place in ("hbm", "on_chip", "psum", "sbuf")]
)
Found = tuple[Module, Definition]


@dataclass(frozen=True)
class Unit:
    """One outermost piece of kernel code: a function with all that is defined inside it.

    `root` is True for a jitted function: only its signature and its returns face the host.
    """

    module: Module
    node: Function
    root: bool


@dataclass
class Project:
    """All files read so far; `units` is complete after `collect`.

    Attributes:
        made: classes of which kernel code makes objects.
        registers: parameters that a dynamic loop fills with a register.
    """

    modules: dict[Path, Module] = field(default_factory=dict)
    units: dict[ast.AST, Unit] = field(default_factory=dict)
    named: dict[ast.ClassDef, Module] = field(default_factory=dict)
    made: set[ast.ClassDef] = field(default_factory=set)
    registers: set[ast.arg] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)

    def load(self, path: Path) -> Module:
        """Read and parse `path` once; raises SyntaxError, ValueError or OSError."""
        path = path.resolve()
        if path not in self.modules:
            root = path.parent
            while (root / "__init__.py").exists():
                root = root.parent
            parts = list(path.relative_to(root).with_suffix("").parts)
            dotted = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            tree = ast.parse(path.read_bytes(), filename=str(path))
            self.modules[path] = Module(path, root, dotted, tree)
        return self.modules[path]

    def find(self, module: Module, node: ast.AST) -> Found | None:
        """The function or class that a name or `module.name` stands for, here or in the package."""
        here = module.definition(node) if isinstance(node, ast.Name) else None
        return (module, here) if here else self._lookup(module, module.resolve(node), depth=5)

    def find_class(self, module: Module, node: ast.AST) -> tuple[Module, ast.ClassDef] | None:
        """The class that `node` stands for, here or in the package."""
        found = self.find(module, node)
        return (found[0], found[1]) if found and isinstance(found[1], ast.ClassDef) else None

    def jitted(self, module: Module, node: ast.AST) -> bool:
        """Whether `node` stands for a kernel that the host launches."""
        if isinstance(node, ast.Call):
            return wrapped(module, node) is not None
        found = self.find(module, node)
        if found:
            return decorated(*found)
        values = module.values(node) if isinstance(node, ast.Name) else []
        return len(values) == 1 and wrapped(module, values[0]) is not None

    def launches(self, module: Module, call: ast.Call) -> tuple[ast.AST, ast.expr | None] | None:
        """(kernel, grid) when `call` runs a kernel from the host, directly or simulated."""
        target: ast.AST = call.func
        if isinstance(target, ast.Call) and module.resolve(target.func) == "nki.simulate":
            target = target.args[0] if target.args else target
        grid = target.slice if isinstance(target, ast.Subscript) else None
        kernel = target.value if isinstance(target, ast.Subscript) else target
        return (kernel, grid) if self.jitted(module, kernel) else None

    def collect(self, module: Module) -> None:
        """Add the kernel code of `module`, and what it reaches, to `units`."""
        roots = list(self._roots(module))
        for home, node in roots:
            self._add(home, node, root=True)
        for node in list(self._callers(module)):
            self._add(module, node, root=False)
        before = -1
        while before != len(self.units):
            before = len(self.units)
            for made, home in list(self.named.items()):
                self._methods(home, made)

    def _roots(self, module: Module) -> Iterator[tuple[Module, Function]]:
        for node in module.nodes:
            if isinstance(node, ast.FunctionDef) and decorated(module, node):
                yield module, node
            target = wrapped(module, node)
            found = self.find(module, target) if target is not None else None
            if found and not isinstance(found[1], ast.ClassDef):
                yield found[0], found[1]

    def _callers(self, module: Module) -> Iterator[Function]:
        for node in module.nodes:
            if not isinstance(node, DEFINITIONS) or isinstance(node, ast.ClassDef):
                continue
            calls = [part for part in own_nodes(node) if isinstance(part, ast.Call)]
            makes = any(wraps(module, part) for part in ast.walk(node) if part is not node)
            if makes or any(self.launches(module, call) for call in calls):
                continue
            names = (module.resolve(call.func) for call in calls)
            if any(n.startswith(("nki.language.", "nki.isa.")) and n not in HOST for n in names):
                yield node

    def _add(self, module: Module, node: Function, root: bool) -> None:
        known = self.units.get(node)
        if any(parent in self.units for parent in module.ancestors(node)):
            return
        self.units[node] = Unit(module, node, root or bool(known and known.root))
        if known:
            return
        for part in body_nodes(node):
            if isinstance(part, ast.Call):
                self._call(module, part)
            elif isinstance(part, ast.Attribute):
                self.attributes.add(part.attr)
            if isinstance(part, ast.Name | ast.Attribute) and isinstance(part.ctx, ast.Load):
                found = self.find(module, part)
                if found and isinstance(found[1], ast.ClassDef):
                    self.named[found[1]] = found[0]
                elif found and not decorated(*found):
                    self._add(found[0], found[1], root=False)  # type: ignore[arg-type]

    def _call(self, module: Module, call: ast.Call) -> None:
        made = self.find_class(module, call.func)
        if made and not isinstance(module.parents.get(call), ast.Raise):
            self.made.add(made[1])
        body = loop_body(module, call)
        if body is None:
            return
        found = self.find(module, body)
        node = body if isinstance(body, ast.Lambda) else found[1] if found else None
        if isinstance(node, ast.FunctionDef | ast.Lambda) and node.args.args:
            self.registers.add(node.args.args[0])

    def _methods(self, module: Module, owner: ast.ClassDef) -> None:
        """Add the methods that kernel code may run: constructors, and any name it mentions."""
        run = self.attributes | {"__call__"}
        if owner in self.made:
            run = run | {"__init__", "__post_init__"}
        for method in owner.body:
            if isinstance(method, ast.FunctionDef) and method.name in run:
                self._add(module, method, root=False)

    def _lookup(self, module: Module, dotted: str, depth: int) -> Found | None:
        prefix, _, name = dotted.rpartition(".")
        path = self._file(module, prefix) if prefix and depth else None
        if path is None:
            return None
        try:
            home = self.load(path)
        except (SyntaxError, ValueError, OSError):
            return None
        values = home.names.get(name, [])
        if len(values) == 1 and isinstance(values[0], DEFINITIONS):
            return home, values[0]
        return self._lookup(home, home.aliases.get(name, ""), depth - 1)

    def _file(self, module: Module, dotted: str) -> Path | None:
        """The file of `dotted`, if it is in the package (or folder of scripts) of `module`."""
        own, parts = module.dotted.split("."), dotted.split(".")
        if len(own) > 1 and parts[0] != own[0]:
            return None
        base = module.root.joinpath(*parts)
        options = (base.with_name(base.name + ".py"), base / "__init__.py")
        return next((path for path in options if path.is_file()), None)


def body_nodes(node: Function) -> Iterator[ast.AST]:
    """The nodes that run, or are read, when the kernel is traced: all but `node`'s decorators."""
    yield node
    skipped = set() if isinstance(node, ast.Lambda) else set(node.decorator_list)
    for child in ast.iter_child_nodes(node):
        if child not in skipped:
            yield from ast.walk(child)
