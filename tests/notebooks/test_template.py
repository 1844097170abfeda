"""Every committed notebook keeps the template; and the rules themselves have teeth."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import pytest

from tools.notebook_rules import MAX_KB, SECTIONS, problems

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NAME = "03_example.ipynb"
HEAD = """# 03. An example

You will see what a good notebook looks like.

**Prerequisites**: notebook 02.

**In this notebook you will learn** to read, to run, to check.

30 min read / 1 min run"""


def markdown(text: str) -> dict:
    return {"cell_type": "markdown", "metadata": {}, "source": text}


def code(text: str, count: int, outputs: list | None = None) -> dict:
    return {
        "cell_type": "code",
        "metadata": {},
        "source": text,
        "execution_count": count,
        "outputs": outputs or [],
    }


@pytest.fixture
def good() -> dict:
    cells = [markdown(HEAD)]
    picture = {"output_type": "display_data", "data": {"image/png": "iVBO"}, "metadata": {}}
    for n, title in enumerate(SECTIONS, start=1):
        cells += [markdown(f"## {n}. {title}\n\n" + "word " * 45), markdown("word " * 50)]
        first = "import dslearn\ndslearn.doctor(line=True)" if n == 1 else f"assert {n} < 11"
        cells.append(code(first, n, [picture] if n == 2 else None))
        cells.append(markdown("Figure 1. A picture." if n == 2 else "word " * 10))
    return {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_keeps_the_template(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    found = problems(path.name, notebook)
    assert not found, "\n".join(found)
    assert path.stat().st_size <= MAX_KB * 1024, f"{path.name} is larger than {MAX_KB} KB"


def test_the_good_example_has_no_problem(good):
    assert problems(NAME, good) == []


def cell_source(index: int, text: str):
    return lambda nb: nb["cells"][index].update(source=text)


def output(**fields):
    return lambda nb: nb["cells"][3].update(outputs=[fields])


def tag(name: str, **metadata):
    return lambda nb: nb["cells"][3].update(metadata={"tags": [name], **metadata})


def replace(old: str, new: str):
    def change(nb: dict) -> None:
        for cell in nb["cells"]:
            cell["source"] = cell["source"].replace(old, new)

    return change


FIRST = 3  # index of the set-up cell in the good example
BREAKS = {
    "title": (replace("# 03. An", "# An"), "must start with '# 03. Title'"),
    "another number": (replace("# 03.", "# 04."), "must start with '# 03. Title'"),
    "prerequisites": (replace("**Prerequisites**", "Before"), "**Prerequisites** must be"),
    "aims": (replace("you will learn**", "there is**"), "you will learn** must be"),
    "minutes": (replace("30 min read", "short"), "how long it takes"),
    "long set-up": (
        cell_source(FIRST, "dslearn.doctor()\n" + "a\n" * 8),
        "set-up cell has 9 lines",
    ),
    "no doctor": (cell_source(FIRST, "import dslearn"), "must call dslearn.doctor"),
    "wrong order": (replace("## 3. By hand", "## 3. Recap"), "out of order or doubled"),
    "strange section": (replace("By hand", "By foot"), "'By foot' is not in the template"),
    "missing section": (replace("## 3. By hand", "By hand"), "sections missing: By hand"),
    "not run": (lambda nb: nb["cells"][FIRST].update(execution_count=None), "must be 1..10"),
    "stderr": (output(output_type="stream", name="stderr", text="oh"), "stderr is committed"),
    "error": (output(output_type="error", evalue="bad", traceback=[]), "an error without the tag"),
    "address": (
        output(output_type="stream", name="stdout", text="<x at 0x7f3a2b1c9d>"),
        "an address in an output",
    ),
    "home": (
        output(output_type="stream", name="stdout", text="/ho" + "me/ann/x"),
        "a path of a machine in an output",
    ),
    "network": (cell_source(7, "urlopen(x)"), "network in a code cell"),
    "install": (cell_source(7, "!pip install x"), "an install in a code cell"),
    "long cell": (cell_source(7, "a = 1\n" * 26), "a code cell of 26 lines"),
    "wide line": (cell_source(7, "a" * 101), "a line of 101 columns"),
    "ignored without why": (tag("nbval-ignore-output"), "without a reason"),
    "no caption": (replace("Figure 1. A picture.", "Look."), "a figure without alt text"),
    "no alt text": (cell_source(2, "![image](x.png)"), "alt text 'image'"),
    "few words": (replace("word ", ""), "words of text"),
    "large": (cell_source(2, "x" * (MAX_KB * 1024)), "KB, at most"),
}


@pytest.mark.parametrize("broken", BREAKS)
def test_each_rule_sees_its_break(good, broken):
    change, words = BREAKS[broken]
    notebook = copy.deepcopy(good)
    change(notebook)
    found = problems(NAME, notebook)
    assert any(words in sentence for sentence in found), found


def test_one_ignored_cell_with_a_reason_is_fine_and_two_are_not(good):
    reason = {"tags": ["nbval-ignore-output"], "dslearn": {"why": "versions differ"}}
    good["cells"][FIRST]["metadata"] = reason
    assert problems(NAME, good) == []
    good["cells"][7]["metadata"] = reason
    assert any("2 of 10 code cells are ignored" in sentence for sentence in problems(NAME, good))


def test_a_meant_error_is_fine(good):
    good["cells"][7]["metadata"] = {"tags": ["raises-exception"]}
    meant = {"output_type": "error", "ename": "X", "evalue": "meant", "traceback": []}
    good["cells"][7]["outputs"] = [meant]
    good["cells"][8]["source"] = "Figure"
    assert problems(NAME, good) == []


def test_the_sanitiser_has_one_rule_and_it_is_about_times():
    text = (ROOT / "tests" / "nbval.cfg").read_text(encoding="utf-8")
    rules = re.findall(r"^regex: (.*)$", text, re.M)
    assert len(rules) == 1
    assert re.sub(rules[0], "TIME", "took 12.5 ms, 3 s; 44 tokens") == "took TIME, TIME; 44 tokens"
