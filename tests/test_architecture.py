"""docs/architecture.md is true: floors, arrows, sizes, and an `import dslearn` that is light."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "dslearn"
SOURCES = sorted(PACKAGE.rglob("*.py"))
FOLDERS = ("dslearn", "tools", "benchmarks", "tests")
PYTHON = sorted(p for folder in FOLDERS for p in (ROOT / folder).rglob("*.py"))
THROUGH_THE_DOOR = {"cli", "__main__", "serve", "doctor"}
ROW = re.compile(r"^\| (\d+) \| ((?:`\w+` ?)+)\| .* \| (here|planned) \|$", re.M)


def floors() -> list[tuple[int, tuple[str, ...], str]]:
    """Rows of the table in docs/architecture.md: floor, modules, whether they exist today."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    found = ROW.findall(text.partition("<!-- floors -->")[2])
    return [(int(floor), tuple(re.findall(r"\w+", names)), today) for floor, names, today in found]


def unit(path: Path) -> str:
    """Top-level name of a source file below the package: folder, or module name."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Every dslearn unit that `path` imports anywhere, with its line; '' is the package itself."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write imports from dslearn in full"
            module = node.module or ""
            below = [f"dslearn.{alias.name}" for alias in node.names]
            names = below if module == "dslearn" else [module]
        for name in names:
            if name.split(".")[0] == "dslearn":
                known = (name.split(".") + [""])[1]
                exists = (PACKAGE / known).is_dir() or (PACKAGE / f"{known}.py").is_file()
                yield (known if exists else ""), node.lineno


def test_the_table_is_complete_and_says_what_exists():
    rows = floors()
    assert len(rows) >= 15, "the table of floors was not found in docs/architecture.md"
    listed = [name for _, names, _ in rows for name in names]
    assert len(listed) == len(set(listed)), "a module stands on two floors"
    real = {unit(path) for path in SOURCES} - {"__init__"}
    assert real <= set(listed), f"no floor for {sorted(real - set(listed))}"
    here = {name for _, names, today in rows if today == "here" for name in names}
    assert here == real, f"'here' and the package differ in {sorted(here ^ real)}"


def test_every_floor_imports_only_what_lies_below_it():
    level = {name: (floor, names) for floor, names, _ in floors() for name in names}
    upwards = []
    for path in SOURCES:
        home = unit(path)
        if home == "__init__":
            continue
        for target, line in imports(path):
            where = f"{path.relative_to(ROOT)}:{line}"
            if target == "":
                if home not in THROUGH_THE_DOOR:
                    upwards.append(f"{where} imports the package itself: name the module")
            elif target not in level[home][1] and level[target][0] <= level[home][0]:
                upwards.append(f"{where} imports {target}, which is not below {home}")
    assert not upwards, "\n".join(upwards)


def test_the_import_check_sees_an_upward_import(tmp_path):
    source = "def f():\n    from dslearn.engine import LM\n    import dslearn\n"
    (tmp_path / "x.py").write_text(source)
    seen = {target for target, _ in imports(tmp_path / "x.py")}
    assert seen - {""} <= {"engine"} and "" in seen


def test_kernels_import_only_kernels_and_integer_tables():
    # The package itself decides who runs kernels; its files know nothing of it.
    kernels = [p for p in SOURCES if unit(p) == "kernels" and p.stem != "__init__"]
    allowed = ("dslearn.kernels", "dslearn.formats.tables")
    wrong = [
        f"{path.name}: {node.module}"
        for path in kernels
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("dslearn")
        and not (node.module or "").startswith(allowed)
    ]
    assert not wrong, wrong


@pytest.mark.parametrize("module", ["dslearn", "dslearn.cli", "dslearn.backend", "dslearn.config"])
def test_importing_is_light(module):
    code = f"import sys, {module}; print(*sorted({{m.split('.')[0] for m in sys.modules}}))"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    heavy = {"torch", "numpy", "safetensors", "tokenizers", "transformers", "matplotlib"}
    loaded = heavy & set(ran.stdout.split())
    assert not loaded, f"import {module} imports {sorted(loaded)}: move the import into a function"


def test_files_and_functions_stay_small():
    long = []
    for path in PYTHON:
        text = path.read_text(encoding="utf-8")
        lines = len(text.splitlines())
        if lines > 250:
            long.append(f"{path.relative_to(ROOT)}: {lines} lines, at most 250: split it")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size = (node.end_lineno or 0) - node.lineno + 1
                if size > 80:
                    long.append(
                        f"{path.relative_to(ROOT)}: {node.name} has {size} lines, at most 80"
                    )
    assert not long, "\n".join(long)


def test_raises_and_asserts_have_messages():
    bare = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            silent = isinstance(node, ast.Raise) and (
                (isinstance(node.exc, ast.Call) and not (node.exc.args or node.exc.keywords))
                or (isinstance(node.exc, ast.Name) and node.exc.id.endswith("Error"))
            )
            if silent or (isinstance(node, ast.Assert) and node.msg is None):
                bare.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not bare, f"raise or assert without a message: {bare}"


def test_no_path_of_a_machine_is_in_the_repository():
    pattern = re.compile(r"/(?:home|Users|root|mnt|tmp|work)/[\w.-]+")
    texts = [*PYTHON, *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), ROOT / "Makefile"]
    assert len(texts) > 20
    found = [
        f"{path.relative_to(ROOT)}: {hit}"
        for path in texts
        for hit in pattern.findall(path.read_text(encoding="utf-8"))
        if path != Path(__file__)
    ]
    assert not found, found
