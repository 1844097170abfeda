"""Print the source of the library in a notebook, without the docstrings."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dslearn.formats

ROOT = Path(dslearn.formats.__file__).parents[2]


def source(thing: type | Callable[..., Any]) -> str:
    """Source of a function, method or class, below a comment that says where it lives.

    Docstrings are left out: they repeat what the notebook's text says, and the code is the point.
    """
    plain = inspect.unwrap(thing)
    text = textwrap.dedent(inspect.getsource(plain))
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            first, last = node.body[0].lineno, node.body[0].end_lineno or node.body[0].lineno
            if len(node.body) > 1:
                lines[first - 1 : last] = [""] * (last - first + 1)
    body = "\n".join(line for line in lines if line.strip())
    where = Path(inspect.getsourcefile(plain) or "").relative_to(ROOT).as_posix()
    return f"# {where}\n{body}"


def show(*things: type | Callable[..., Any]) -> None:
    """Print `source` of each of `things`, a blank line between them."""
    print("\n\n".join(source(thing) for thing in things))
