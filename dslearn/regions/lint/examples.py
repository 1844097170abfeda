"""The two examples of a rule, ready to be linted."""

from __future__ import annotations

import linecache
import os
import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import nn


def load(source: str, name: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Run an example; -> its `step` and `inputs`. Findings name the file `<name>`."""
    file = f"<{name}>"
    text = source.lstrip("\n")
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    # A module that can be imported: torch looks up the home of every function that it inlines.
    home = "lint_example_" + re.sub(r"\W", "_", name)
    module = sys.modules[home] = ModuleType(home)
    vars(module).update(torch=torch, nn=nn, os=os)
    exec(compile(text, file, "exec"), vars(module))
    return module.step, module.inputs
