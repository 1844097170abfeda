"""The examples of docs/regions.md print what stands below them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[3] / "docs" / "regions.md"
EXAMPLE = re.compile(r"^```python run\n(.*?)^```\n\n```text\n(.*?)^```\n", re.M | re.S)


def test_examples_print_what_the_page_says(capsys):
    found = EXAMPLE.findall(PAGE.read_text(encoding="utf-8"))
    assert len(found) == 3
    names: dict[str, Any] = {}
    for source, printed in found:
        exec(compile(source, "docs/regions.md", "exec"), names)
        assert capsys.readouterr().out == printed
    compile(names["text"], "found.py", "exec")
