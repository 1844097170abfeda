"""Placeholders, look-alikes and stand-ins are told from the vendor's packages by attributes."""

from __future__ import annotations

import importlib.util

import pytest

from dslearn.vendor import PACKAGES, probe
from tests.support.vendor import REAL, WRONG, python, write

CASES = {
    "nothing": ({}, "absent", "not installed"),
    "PyPI placeholder": ({"nki/__init__.py": WRONG}, "placeholder", "--extra-index-url"),
    "folder of that name": ({"nki/notes.txt": ""}, "unknown", "isa.nc_matmul"),
    "empty package": ({"nki/__init__.py": ""}, "unknown", "language.fori_loop"),
    "too old": (REAL | {"nki/language.py": ""}, "unknown", "without language.fori_loop"),
    "broken": ({"nki/__init__.py": "1 / 0"}, "broken", "ZeroDivisionError"),
    "needs something": ({"nki/__init__.py": "import nowhere_at_all"}, "broken", "nowhere_at_all"),
    "stand-in": (REAL | {"nki/__init__.py": "__dslearn_stand_in__ = True"}, "stand-in", "dslearn"),
    "stand-in inside": (REAL | {"nki/isa.py": "__dslearn_stand_in__ = True"}, "unknown", "isa"),
    "vendor's": (REAL, "real", "0.6.0"),
}


@pytest.mark.parametrize("case", CASES)
def test_nki_is_recognised_by_what_it_holds(tmp_path, case):
    files, status, words = CASES[case]
    write(tmp_path, files)
    code = "from dslearn.vendor import probe; p = probe('nki'); print(p.status, '|', p.detail)"
    ran = python(tmp_path, "-c", code)
    assert ran.returncode == 0, ran.stderr
    found, _, detail = ran.stdout.strip().partition(" | ")
    assert (found, words in detail) == (status, True), f"{case}: {ran.stdout}"


def test_find_spec_alone_would_have_believed_the_placeholder(tmp_path, monkeypatch):
    write(tmp_path, {"nki/__init__.py": WRONG})
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.util.find_spec("nki") is not None
    assert not probe("nki").real


@pytest.mark.parametrize(
    "count, backends, answers", [(2, ["neuron"], True), (0, ["neuron"], False)]
)
def test_a_device_counts_only_when_it_answers(tmp_path, count, backends, answers):
    write(
        tmp_path,
        {
            "torch_neuronx/__init__.py": "__version__ = '2.13'",
            "torch_neuronx/nki_hop.py": "def wrap_nki(): ...",
            "torch/__init__.py": f"class neuron:\n  device_count = staticmethod(lambda: {count})",
            "torch/_dynamo.py": f"list_backends = lambda exclude_tags: {backends}",
        },
    )
    code = "from dslearn.vendor import neuron_device; print(neuron_device())"
    ran = python(tmp_path, "-c", code)
    assert ran.stdout == f"({answers}, 'torch_neuronx is real and counts {count} devices')\n"


def test_an_error_while_asking_for_devices_is_an_answer(tmp_path):
    write(
        tmp_path,
        {
            "torch_neuronx/__init__.py": "",
            "torch_neuronx/nki_hop.py": "def wrap_nki(): ...",
            "torch/__init__.py": "",
        },
    )
    ran = python(tmp_path, "-c", "from dslearn.vendor import neuron_device; print(neuron_device())")
    assert ran.stdout.startswith("(False, ")
    assert "asking it for devices failed: ModuleNotFoundError" in ran.stdout


def test_only_known_packages_are_probed():
    assert set(PACKAGES) == {"nki", "torch_neuronx", "neuronxcc"}
    with pytest.raises(KeyError, match="somepackage"):
        probe("somepackage")
