"""The notebooks and the solutions of their exercises, as files and as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
SOLUTIONS = sorted((NOTEBOOKS / "solutions").glob("*.py"))


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"solutions_{path.stem}", path)
    assert spec and spec.loader, f"{path} cannot be imported"
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # torch looks for the globals of what it traces there
    spec.loader.exec_module(module)
    return module
