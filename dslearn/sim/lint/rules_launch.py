"""How the host launches a kernel: the grid, the arguments, the options of `nki.jit`.

Source: docs/reference/nki.md, "Language rules".
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from dslearn.sim.lint.module import Module
from dslearn.sim.lint.project import Project
from dslearn.sim.lint.rule import Hit, Rule
from dslearn.sim.lint.scope import text

_KERNEL = "@nki.jit\ndef kernel(x, sizes=()):\n    return x\n\n\n"

RULES = (
    Rule(
        id="launch-grid",
        level="error",
        what="the grid is the plain number 1 or 2",
        why="it counts the physical cores of one logical core, and trn2 has two",
        fix="launch with kernel[2](...) or kernel(...)",
        fires=_KERNEL + "def run(x):\n    return kernel[(2, 2)](x)",
        legal=_KERNEL + "def run(x):\n    return kernel[2](x)",
    ),
    Rule(
        id="list-launch",
        level="error",
        what="no lists, dicts or sets among the arguments of a launch",
        why="compile-time arguments are the key of the compile cache, and these can change",
        fix="pass a tuple",
        fires=_KERNEL + "def run(x):\n    return kernel(x, sizes=[1, 2])",
        legal=_KERNEL + "def run(x):\n    return kernel(x, sizes=(1, 2))",
    ),
    Rule(
        id="jit-platform",
        level="error",
        what="nki.jit takes no platform_target",
        why="it raises: the target comes from the environment",
        fix="set NEURON_PLATFORM_TARGET_OVERRIDE=trn2 before importing nki",
        fires='@nki.jit(platform_target="trn2")\ndef kernel(x):\n    return x',
        legal="@nki.jit\ndef kernel(x):\n    return x",
    ),
    Rule(
        id="jit-mode",
        level="warn",
        what="nki.jit ignores mode=",
        why="there is one way to compile a kernel since 0.3",
        fix="remove it",
        fires='@nki.jit(mode="trace")\ndef kernel(x):\n    return x',
        legal="@nki.jit()\ndef kernel(x):\n    return x",
    ),
)

_CHANGEABLE = (ast.List, ast.ListComp, ast.Dict, ast.DictComp, ast.Set, ast.SetComp)


def check_module(project: Project, module: Module) -> Iterator[Hit]:
    """Launches and `nki.jit` options anywhere in a file."""
    for node in module.nodes:
        if isinstance(node, ast.Subscript) and project.jitted(module, node.value):
            yield from _grid(module, node)
        if not isinstance(node, ast.Call):
            continue
        if module.resolve(node.func) == "nki.jit":
            yield from _options(node)
        if project.launches(module, node):
            for value in (*node.args, *(word.value for word in node.keywords)):
                if isinstance(value, _CHANGEABLE):
                    yield Hit("list-launch", value, f"`{text(value)}`")
        if module.resolve(node.func) in ("nki.language.program_id", "nki.language.num_programs"):
            for value in (*node.args, *(word.value for word in node.keywords)):
                if isinstance(value, ast.Constant) and value.value not in (0, None):
                    yield Hit("launch-grid", node, f"`{text(node)}`", "the grid has axis 0 alone")


def _grid(module: Module, node: ast.Subscript) -> Iterator[Hit]:
    grid: ast.AST = node.slice
    values = module.values(grid) if isinstance(grid, ast.Name) else []
    if len(values) == 1 and isinstance(values[0], ast.Constant | ast.Tuple):
        grid = values[0]
    wrong = isinstance(grid, ast.Tuple | ast.List | ast.Slice | ast.UnaryOp)
    if isinstance(grid, ast.Constant):
        wrong = grid.value not in (1, 2)
    elif isinstance(grid, ast.Call):
        wrong = module.resolve(grid.func).startswith("nki.language.")
    if wrong:
        yield Hit("launch-grid", node, f"`{text(node)}`")


def _options(call: ast.Call) -> Iterator[Hit]:
    for keyword in call.keywords:
        if keyword.arg == "platform_target":
            yield Hit("jit-platform", keyword.value, f"`{text(call)}`")
        elif keyword.arg == "mode":
            yield Hit("jit-mode", keyword.value, f"`{text(call)}`")
