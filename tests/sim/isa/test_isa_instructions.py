"""benchmarks/instructions.py calls every instruction and every function that the stand-in has."""

from __future__ import annotations

import inspect

import pytest

from benchmarks.instructions import cases, nisa
from dslearn.sim.isa import random, trn3
from dslearn.sim.numerics.activations import FUNCTIONS
from dslearn.sim.program import current

CASES = cases()
LEFT_OUT = {"sendrecv"}  # it needs two cores


def test_no_instruction_and_no_function_is_missing() -> None:
    refused = {name for module in (random, trn3) for name in vars(module)}
    kinds = {n for n, f in vars(nisa).items() if inspect.isfunction(f) and not n.startswith("_")}
    titles = {title.partition(",")[0] for title in CASES}
    assert {title.split()[0] for title in titles} == kinds - refused - LEFT_OUT
    assert {f"activation {name}" for name in FUNCTIONS} <= titles


@pytest.mark.parametrize("title", sorted(CASES))
def test_a_call_is_the_instruction_that_it_says(title: str) -> None:
    before = len(current().instructions)
    CASES[title]()
    name = title.partition(",")[0].split()[0]
    made = [one.name for one in current().instructions[before:]]
    silent = name in ("register_alloc", "get_nc_version", "get_nc_sub_version")
    assert made == ([] if silent else [name])
