"""benchmarks/instructions.py calls every instruction and every function that the stand-in has."""

from __future__ import annotations

import inspect

from benchmarks.instructions import cases, nisa
from dslearn.sim.isa import random, trn3
from dslearn.sim.numerics.activations import FUNCTIONS
from dslearn.sim.program import current

LEFT_OUT = {"sendrecv"}  # it needs two cores
SILENT = ("register_alloc", "get_nc_version", "get_nc_sub_version")  # not on the record


def test_no_instruction_and_no_function_is_missing() -> None:
    refused = {name for module in (random, trn3) for name in vars(module)}
    kinds = {n for n, f in vars(nisa).items() if inspect.isfunction(f) and not n.startswith("_")}
    titles = {title.partition(",")[0] for title in cases()}
    assert {title.split()[0] for title in titles} == kinds - refused - LEFT_OUT
    assert {f"activation {name}" for name in FUNCTIONS} <= titles


def test_each_call_is_the_one_instruction_that_it_says() -> None:
    for title, call in cases().items():  # not parametrised: the tiles would live on in SBUF
        before = len(current().instructions)
        call()
        name = title.partition(",")[0].split()[0]
        made = [one.name for one in current().instructions[before:]]
        assert made == ([] if name in SILENT else [name]), title
