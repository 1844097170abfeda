"""The published signatures, bound as Python itself binds."""

from __future__ import annotations

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslearn.sim.signatures import (
    Signature,
    class_members,
    enum_names,
    public_names,
    signatures,
)

NAMES = sorted(signatures())


def python_signature(signature: Signature) -> inspect.Signature:
    """The same parameters as an `inspect.Signature`."""
    kind, empty = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty
    parameters = [
        inspect.Parameter(p.name, kind, default=empty if p.default is None else p.default)
        for p in signature.parameters
    ]
    if signature.star:
        parameters.append(inspect.Parameter("rest", inspect.Parameter.VAR_POSITIONAL))
    if signature.kwargs:
        parameters.append(inspect.Parameter("words", inspect.Parameter.VAR_KEYWORD))
    return inspect.Signature(parameters)


@given(st.data())
def test_calls_bind_exactly_when_python_binds_them(data):
    signature = signatures()[data.draw(st.sampled_from(NAMES))]
    known = [p.name for p in signature.parameters]
    words = data.draw(st.lists(st.sampled_from([*known, "unknown", "extra"]), unique=True))
    count = data.draw(st.integers(0, len(known) + 1))
    try:
        python_signature(signature).bind(*range(count), **dict.fromkeys(words))
        binds = True
    except TypeError:
        binds = False
    assert (signature.complaint(count, words) == "") is binds


def test_a_signature_reads_as_published():
    copy = signatures()["nki.isa.dma_copy"]
    assert [p.name for p in copy.parameters][:3] == ["dst", "src", "priority"]
    required = [p.name for p in copy.parameters if p.default is None]
    assert required == ["dst", "src"]
    assert copy.parameter("oob_mode").enum == "oob_mode"
    assert copy.parameter("priority").enum == "" and copy.parameter("nothing") is None
    assert signatures()["nki.language.rms_norm"].parameter("epsilon").enum == ""
    assert signatures()["nki.isa.NkiInstruction.depends_on"].star
    assert signatures()["nki.jit"].kwargs


@pytest.mark.parametrize(
    ("count", "words", "open_ended", "said"),
    [
        (0, ["dst"], False, "missing value"),
        (0, ["dst"], True, ""),
        (2, ["dst"], False, "'dst' is given twice"),
        (5, [], False, "5 positional arguments, it takes 4"),
        (2, ["mask"], True, "unknown keyword 'mask'"),
        (1, ["value", "engine"], False, ""),
    ],
)
def test_complaints_say_what_is_wrong(count, words, open_ended, said):
    assert signatures()["nki.isa.memset"].complaint(count, words, open_ended) == said


def test_enums_and_names():
    assert "nki.isa.engine" in enum_names() and "nki.isa.NkiInstruction" not in enum_names()
    assert class_members("nki.isa.oob_mode") == {"error", "skip"}
    assert class_members("nki.isa.nothing") == frozenset() == class_members("nothing")
    assert {"float32", "sbuf", "tile_size", "add"} <= public_names("nki.language")
    enums = {p.enum for s in signatures().values() for p in s.parameters if p.enum}
    assert {f"nki.isa.{name}" for name in enums} <= enum_names()
