"""The list of the simulator's checks is complete, and one that is off is noticed."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import mutate_checks
import sim_checks
from dslearn.sim.rules import RULES

FOUND, CODES = sim_checks.switched()


def test_every_rule_has_a_check():
    assert set(RULES) <= {check.rule for check in FOUND} | {"name"}
    assert any(check.place.startswith("removed.py") or check.rule == "name" for check in FOUND)


def test_every_raise_of_a_refusal_is_a_check():
    kinds = "Rule|Bounds|Argument|NkiValidation|NotSupported"
    count = sum(
        len(re.findall(rf"raise (?:{kinds})Error\(", path.read_text(encoding="utf-8")))
        for path in sim_checks.sources()
    )
    raised = [check for check in FOUND if check.kind == "raise"]
    assert count > 200 and len(raised) >= count


@pytest.mark.parametrize(
    "place, rule, kind",
    [
        ("one_bank", "psum-bank", "raise"),
        ("nc_matmul", "psum-bank", "call of one_bank"),
        ("_sbuf", "sbuf-capacity", "raise"),
        ("partitions", "start-partition", "raise"),
        ("choose", "engine", "raise"),
        ("mark", "lnc-disjoint", "raise"),
        ("same_shape", "shape", "condition 1"),
        ("same_shape", "shape", "condition 2"),
    ],
)
def test_what_a_check_is(place, rule, kind):
    assert any((c.place.split()[1], c.rule, c.kind) == (place, rule, kind) for c in FOUND)


def test_a_switch_is_off_for_one_check_only():
    switch = mutate_checks.Switch()
    switch.off, switch.test = 3, "t"
    assert not switch.on(3) and not switch.refuses(3) and switch.refuses(4)
    assert switch.holds(5, 0) == 0 and switch.holds(6, 7) == 7
    assert {number: list(tests) for number, tests in switch.hits.items()} == {4: ["t"], 6: ["t"]}


def test_arguments(capsys):
    assert mutate_checks.main(["--list", "--only", "psum-bank"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and all("psum-bank" in line for line in lines)
    with pytest.raises(SystemExit) as stopped:
        mutate_checks.main(["--only", "nothing of that name"])
    assert stopped.value.code == 2


@pytest.mark.slow
def test_a_check_that_is_off_is_noticed():
    noticed, missed = "two-psum (raise)", "isa/search.py:50"
    tests = mutate_checks.ROOT / "tests" / "sim" / "isa" / "test_isa_tensor_scalar.py"
    command = [sys.executable, mutate_checks.__file__, "--tests", str(tests)]
    ran = subprocess.run([*command, "--only", noticed], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "| two-psum | 1 | 1 |" in ran.stdout and "1 of 1 checks noticed" in ran.stdout
    ran = subprocess.run([*command, "--only", missed], capture_output=True, text=True)
    assert ran.returncode == 1 and "NOT REACHED isa/search.py:50 _eight" in ran.stdout
