"""`show` prints code that runs, without docstrings, and says where it lives."""

from __future__ import annotations

import ast

import pytest

from dslearn.formats import e4m3, records, rows
from dslearn.lessons import show
from dslearn.lessons.sources import source


@pytest.mark.parametrize("thing", [e4m3.decode, e4m3.values, rows.fake_fp8, records.Record.pack])
def test_source_has_a_place_the_code_and_no_docstring(thing):
    first, _, rest = source(thing).partition("\n")
    assert first == f"# {thing.__module__.replace('.', '/')}.py"
    function = ast.parse(rest).body[0]
    assert isinstance(function, ast.FunctionDef) and function.name == thing.__name__
    assert ast.get_docstring(function) is None and len(function.body) >= 2


def test_classes_lose_the_docstrings_of_their_methods_too():
    tree = ast.parse(source(records.Record))
    assert not [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node)
    ]
    assert any(isinstance(n, ast.FunctionDef) and n.name == "pack" for n in ast.walk(tree))


def test_a_body_that_is_only_a_docstring_is_kept():
    from dslearn.errors import FormatError

    assert ast.get_docstring(ast.parse(source(FormatError)).body[0])


def test_show_prints_everything_it_is_given(capsys):
    show(e4m3.decode, rows.dequantize_fp8)
    printed = capsys.readouterr().out
    assert printed == f"{source(e4m3.decode)}\n\n{source(rows.dequantize_fp8)}\n"
