"""Lint files and folders: every rule over every piece of kernel code, findings in order."""

from __future__ import annotations

import ast
import tokenize
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dslearn import allowed
from dslearn.errors import UsageError
from dslearn.findings import Finding, check_name, errors, shown
from dslearn.sim.lint import (
    allow,
    rules_calls,
    rules_kernel,
    rules_launch,
    rules_loops,
    rules_purity,
    rules_python,
    rules_tiles,
    rules_versions,
)
from dslearn.sim.lint.kinds import Kinds
from dslearn.sim.lint.module import Module
from dslearn.sim.lint.project import Project
from dslearn.sim.lint.rule import Hit, Rule
from dslearn.sim.lint.scope import Scope

_FAMILIES = (rules_python, rules_purity, rules_kernel, rules_calls, rules_versions, rules_loops)
_CHECKS = tuple(family.check for family in (*_FAMILIES, rules_tiles))
_SYNTAX = Rule(
    id="syntax",
    level="error",
    what="a file can be read as Python",
    why="nothing can be said about one that cannot",
    fix="correct it first",
    fires="n = (\n",
    legal="n = ()",
)
RULES: dict[str, Rule] = {
    rule.id: rule
    for source in (*_FAMILIES, rules_tiles, rules_launch, allow)
    for rule in source.RULES
} | {"syntax": _SYNTAX}


@dataclass(frozen=True)
class Report:
    """What a run found, in the order of files and lines, and how much it looked at."""

    findings: tuple[Finding, ...]
    files: int
    kernels: int

    @property
    def errors(self) -> int:
        """How many findings are errors."""
        return errors(self.findings)


def lint(paths: Sequence[str | Path], off: Collection[str] = ()) -> Report:
    """Lint the files, and the `.py` files of the folders, in `paths`; nothing is imported or run.

    Kernel code that a file imports from its own package is linted with it.

    Raises:
        UsageError: no such path, no Python file, or a rule in `off` that is none.
    """
    for name in off:
        check_name(name, RULES, "--off")
    files = list(dict.fromkeys(_files(paths)))
    project = Project()
    found: set[Finding] = set()
    modules: list[Module] = []
    for path in files:
        try:
            modules.append(project.load(path))
        except (SyntaxError, ValueError) as error:
            found.add(_unreadable(path, error))
    for module in modules:
        project.collect(module)
    hits = [(module, hit) for module in modules for hit in _file_hits(project, module)]
    hits += list(_kernel_hits(project))
    found |= set(_findings(hits, modules))
    kept = tuple(sorted(finding for finding in found if finding.rule not in off))
    return Report(kept, len(files), sum(unit.root for unit in project.units.values()))


def _files(paths: Iterable[str | Path]) -> Iterator[Path]:
    for path in map(Path, paths):
        if path.is_dir():
            inside = [p for p in sorted(path.rglob("*.py")) if not _hidden(p.relative_to(path))]
            if not inside:
                raise UsageError(f"{path}: no Python file in this folder")
            yield from inside
        elif path.is_file():
            if path.suffix != ".py":
                raise UsageError(f"{path}: kernels are read from Python files (.py), or folders")
            yield path
        else:
            raise UsageError(f"{path}: no such file or folder")


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") or part == "__pycache__" for part in path.parts)


def _file_hits(project: Project, module: Module) -> Iterator[Hit]:
    has_kernels = any(unit.module is module for unit in project.units.values())
    yield from rules_versions.check_module(module, has_kernels)
    yield from rules_launch.check_module(project, module)


def _kernel_hits(project: Project) -> Iterator[tuple[Module, Hit]]:
    kinds = {module.path: Kinds(module, project.registers) for module in project.modules.values()}
    for unit in list(project.units.values()):
        scope = Scope(project, unit, kinds[unit.module.path])
        for check in _CHECKS:
            for hit in check(scope):
                yield unit.module, hit


def _findings(hits: Iterable[tuple[Module, Hit]], asked: Sequence[Module]) -> Iterator[Finding]:
    """Findings, with the comments of their files applied."""
    hits = list(hits)
    comments: dict[Path, allowed.Allowed] = {}
    for module in (*asked, *(module for module, _ in hits)):
        if module.path not in comments:
            with tokenize.open(module.path) as file:
                comments[module.path] = allowed.read(file.read(), RULES, allow.WORD)
            for line, column, message in comments[module.path].wrong:
                yield _finding(module.path, (line, column), "allow-comment", message)
    for module, hit in hits:
        first = getattr(hit.node, "lineno", 1)
        last = getattr(hit.node, "end_lineno", first) if isinstance(hit.node, ast.expr) else first
        if not comments[module.path].covers(hit.rule, first, last):
            at = (first, getattr(hit.node, "col_offset", 0) + 1)
            yield _finding(module.path, at, hit.rule, hit.message, hit.fix)


def _finding(path: Path, at: tuple[int, int], rule: str, message: str, fix: str = "") -> Finding:
    known = RULES[rule]
    ours = ("dslearn", "kernels") in zip(path.parts, path.parts[1:], strict=False)
    level = "error" if known.house and ours else known.level
    return Finding(shown(path), *at, rule, level, message, fix or known.fix)


def _unreadable(path: Path, error: Exception) -> Finding:
    line = getattr(error, "lineno", None) or 1
    column = getattr(error, "offset", None) or 1
    return _finding(path, (line, column), "syntax", str(getattr(error, "msg", error)))
