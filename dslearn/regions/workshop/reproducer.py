"""A failing graph as a Python file that needs torch and NumPy, nothing else."""

from __future__ import annotations

import inspect
import re
from types import ModuleType
from typing import Any

from torch import fx

from dslearn.regions.workshop import rerun
from dslearn.regions.workshop.case import Case

_TEMPLATE = '''"""{title}

    python reproducer.py --backend NAME --compiles 29

NAME is a backend of torch.compile, or MODULE:FUNCTION. The exit code is 1 if a compile fails.
"""

from __future__ import annotations

{imports}


{graph}


{machinery}


SPECS = (
{specs})

if __name__ == "__main__":
    raise SystemExit(main(graph, SPECS, {seed}, {tolerance}))
'''


def source(case: Case, title: str = "A graph that a compiler fails on.") -> str:
    """The file's text; `title` says what fails, how often, with which error."""
    imports, graph = _code(case.module)
    needed, machinery = _machinery()
    lines = {*imports, *needed, *(f"import {name}  # defines operations" for name in case.imports)}
    return _TEMPLATE.format(
        title=title.replace("\\", "\\\\").replace('"""', "'''"),
        imports="\n".join(sorted(lines)),
        graph=graph,
        machinery=machinery,
        seed=f"seed={case.seed}",
        tolerance=f"tolerance={case.tolerance}",
        specs="".join(f"    {spec},\n" for spec in case.specs),
    )


def _code(module: fx.GraphModule) -> tuple[set[str], str]:
    """Imports and a function `graph` that computes what the module does."""
    made = module.graph.python_code("")
    names: dict[str, Any] = made.globals
    code = re.sub(r";  (?:\w+ = )+None", "", made.src)  # FX frees what is not needed any more
    code = re.sub(r"def forward\((?:self)?(?:, )?", "def graph(", code.strip())
    used = {name: value for name, value in names.items() if re.search(rf"\b{name}\b", code)}
    return {_import(name, value) for name, value in used.items()}, code


def _import(name: str, value: Any) -> str:
    """How a file gets what generated code calls `name`; FX writes `inf`, `nan` and such bare."""
    if isinstance(value, ModuleType):
        return f"import {value.__name__}" + (f" as {name}" if name != value.__name__ else "")
    if isinstance(value, float):
        return f"from math import {name}"
    home, real = getattr(value, "__module__", "builtins"), getattr(value, "__qualname__", name)
    return f"from {home} import {real}" + (f" as {name}" if name != real else "")


def _machinery() -> tuple[set[str], str]:
    """`rerun.py` without its docstring: its imports and the rest."""
    _, text = inspect.getsource(rerun).split('"""\n\nfrom __future__ import annotations\n\n', 1)
    imports, rest = re.split(r"\n\n(?=FLOATS)", text)
    return set(imports.splitlines()), rest.strip()
