"""Importing `dslearn.kernels` picks the vendor's `nki` where it is, the stand-in elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.vendor import REAL, WRONG, python, said, write

SHOW = (
    "import os, dslearn.kernels as k, nki\n"
    "mark = getattr(nki, '__dslearn_stand_in__', False)\n"
    "print(k.NKI.status, mark, os.environ['NEURON_PLATFORM_TARGET_OVERRIDE'], bool(k.NKI.detail))"
)


def chosen(folder: Path, package: dict[str, str], **environment: str) -> str:
    """What a fresh process prints whose `nki` is `package`."""
    write(folder, package)
    return said(python(folder, "-c", SHOW, **environment))


@pytest.mark.parametrize(
    ("package", "expected"),
    [
        ({}, "stand-in True trn2 True"),
        ({"nki/__init__.py": WRONG}, "stand-in True trn2 True"),
        (REAL, "real False trn2 True"),
    ],
    ids=["absent", "placeholder", "real"],
)
def test_who_runs_kernels(tmp_path, package, expected):
    assert chosen(tmp_path, package) == expected


def test_a_target_that_is_set_stays(tmp_path):
    given = chosen(tmp_path, {}, NEURON_PLATFORM_TARGET_OVERRIDE="gen3")
    assert given == "stand-in True gen3 True"
    other = chosen(tmp_path, {}, NEURON_PLATFORM_TARGET_OVERRIDE="trn3")
    assert "NotSupportedError" in other and "trn2" in other
