"""What every kernel file keeps: docstring, twin, tests, imports, signatures, sizes."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

import pytest

import dslearn.kernels
from dslearn.sim.signatures import signatures

ROOT = Path(__file__).parents[2]
FILES = sorted(p for p in (ROOT / "dslearn" / "kernels").glob("*.py") if p.stem != "__init__")
PARTS = ("Dimensions:", "Args:", "Returns:", "Notes:", "Pseudocode:")
ALIASES = {"nisa": "nki.isa", "nl": "nki.language", "nki": "nki"}
ALLOWED = (
    "__future__", "collections.abc", "nki", "nki.isa", "nki.language", "dslearn.formats.tables",
)  # fmt: skip


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def functions(path: Path) -> list[ast.FunctionDef]:
    return [n for n in ast.walk(tree(path)) if isinstance(n, ast.FunctionDef)]


def kernels(path: Path) -> list[ast.FunctionDef]:
    """Functions marked `@nki.jit`."""
    return [
        f for f in functions(path) if any(ast.unparse(d) == "nki.jit" for d in f.decorator_list)
    ]


WITH_KERNELS = [path for path in FILES if kernels(path)]
each_file = pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
each_kernel_file = pytest.mark.parametrize("path", WITH_KERNELS, ids=lambda p: p.stem)


def complaints(source: ast.Module) -> list[str]:
    """Calls of nki, nl and nisa that do not bind to the published table by keyword alone."""
    found, table = [], signatures()
    for node in ast.walk(source):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        module = ALIASES.get(ast.unparse(node.func.value))
        if module is None:
            continue
        name = f"{module}.{node.func.attr}"
        if name not in table:
            found.append(f"line {node.lineno}: {name} is not published")
            continue
        keywords = [k.arg or "**" for k in node.keywords]
        problem = table[name].complaint(len(node.args), keywords)
        problem = "positional arguments" if node.args else problem
        found += [f"line {node.lineno}: {name}: {problem}"] if problem else []
    return found


def test_there_are_kernels_and_somebody_runs_them():
    assert {path.stem for path in WITH_KERNELS} >= {"rmsnorm", "swiglu"}
    assert dslearn.kernels.NKI.status in ("real", "stand-in") and dslearn.kernels.NKI.detail


@each_kernel_file
def test_the_docstring_says_everything_in_order(path):
    for kernel in kernels(path):
        text = ast.get_docstring(kernel) or ""
        places = [text.find(f"\n{part}\n") for part in PARTS]
        assert min(places) > 0 and places == sorted(places), f"{kernel.name}: {PARTS}: {places}"
        first = text.splitlines()[0]
        assert first.endswith(".") and text.splitlines()[1] == "", f"{kernel.name}: one sentence"


@each_kernel_file
def test_every_kernel_has_a_twin_and_a_test_file(path):
    twin = importlib.import_module(f"dslearn.ops.{path.stem}").reference
    kernel = importlib.import_module(f"dslearn.kernels.{path.stem}")
    named = {k.name for k in kernels(path)}
    assert path.stem in named, "a file's main kernel has its name"
    inner = getattr(kernel, path.stem).__wrapped__
    assert list(inspect.signature(twin).parameters) == list(inspect.signature(inner).parameters)
    assert (ROOT / "tests" / "kernels" / f"test_{path.stem}.py").exists()


@each_file
def test_kernel_files_import_only_what_a_device_has(path):
    modules = []
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules.append(node.module or "")
    assert modules
    lost = [m for m in modules if m not in ALLOWED and not m.startswith("dslearn.kernels.")]
    assert not lost, f"{path.name} imports {lost}"


@each_file
def test_every_call_binds_to_the_published_signature_by_keyword(path):
    assert complaints(tree(path)) == []


def test_the_signature_check_sees_mistakes():
    source = (
        "nisa.dma_copy(a, b)\nnisa.dma_copy(dst=a)\nnisa.dma_copy(dst=a, src=b, mask=c)\n"
        "nl.arange(4)\nnisa.dma_copy(dst=a, src=b)\n"
    )
    lines = [c.partition(":")[0] for c in complaints(ast.parse(source))]
    assert lines == ["line 1", "line 2", "line 3", "line 4"]


@each_file
def test_functions_stay_short(path):
    long = [f.name for f in functions(path) if (f.end_lineno or 0) - f.lineno + 1 > 80]
    assert not long and len(path.read_text(encoding="utf-8").splitlines()) <= 250, long
