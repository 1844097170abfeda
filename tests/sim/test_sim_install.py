"""Who answers `import nki`: the vendor's package, the stand-in, or an error; never by surprise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.vendor import REAL, WRONG, python, said, write


def child(folder: Path, code: str, **environment: str) -> str:
    return said(python(folder, "-c", code, **environment))


INSTALL = "import dslearn.sim as sim; print(sim.install(), sim.installed())"


@pytest.mark.parametrize(
    "files, answer",
    [
        ({}, "True True"),
        ({"nki/__init__.py": WRONG}, "True True"),
        (REAL, "False False"),
    ],
    ids=["absent", "placeholder", "vendor's"],
)
def test_installs_only_where_the_vendors_package_is_missing(tmp_path, files, answer):
    write(tmp_path, files)
    assert child(tmp_path, INSTALL) == answer


@pytest.mark.parametrize(
    "files, words",
    [
        (REAL | {"nki/language.py": ""}, "nki is unknown"),
        ({"nki/__init__.py": "1 / 0"}, "nki is broken"),
    ],
    ids=["too old", "broken"],
)
def test_an_unusable_vendor_package_is_not_hidden_silently(tmp_path, files, words):
    write(tmp_path, files)
    said = child(tmp_path, INSTALL)
    assert said.startswith("dslearn.errors.BackendError") and words in said
    assert child(tmp_path, INSTALL.replace("install()", "install(force=True)", 1)) == "True True"


def test_forced_over_the_vendors_package_and_back(tmp_path):
    write(tmp_path, REAL)
    code = """
import nki, dslearn.sim as sim
print(sim.install(), end=" ")
print(sim.install(force=True), sim.installed(), end=" ")
import nki.isa
print(hasattr(nki.isa, "memset"), end=" ")
sim.uninstall()
import nki.isa
print(sim.installed(), nki.__version__, hasattr(nki.isa, "memset"))
"""
    assert child(tmp_path, code) == "False True True True False 0.6.0 False"


def test_all_modules_can_be_imported_and_carry_a_spec_and_the_mark(tmp_path):
    code = """
import importlib, importlib.util, dslearn.sim as sim
sim.install(); sim.install()
names = ["nki", "nki.language", "nki.isa", "nki.isa.constants", "nki.collectives", "nki.typing",
         "nki.simulator", "nki.compiler.target"]
found = [importlib.import_module(n) for n in names]
assert all(m.__dslearn_stand_in__ and importlib.util.find_spec(m.__name__) for m in found)
from nki.language import add
import nki.isa.constants as c
from dslearn.vendor import probe
print(add, c.engine.vector.name, probe("nki").status)
sim.uninstall()
print(probe("nki").status)
"""
    assert child(tmp_path, code).split() == ["nl.add", "vector", "stand-in", "absent"]


@pytest.mark.parametrize(
    "target, answer",
    [("trn2", "True True"), ("gen3", "True True"), ("", "True True"), ("trn3", "trn2 (gen3) only")],
)
def test_only_trn2_is_simulated(tmp_path, target, answer):
    said = child(tmp_path, INSTALL, NEURON_PLATFORM_TARGET_OVERRIDE=target)
    assert answer in said
    assert ("NotSupportedError" in said) == (target == "trn3")


def test_importing_dslearn_registers_nothing(tmp_path):
    code = "import dslearn, dslearn.sim, sys; print('nki' in sys.modules)"
    assert child(tmp_path, code) == "False"
