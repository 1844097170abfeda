"""The examples in docs/regions.md do what they say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from dslearn import regions

PAGE = Path(__file__).parents[2] / "docs" / "regions.md"


@pytest.mark.usefixtures("own_graphs")
def test_the_first_examples_run(capsys):
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    names: dict[str, Any] = {"__name__": __name__}
    for block in blocks[:6]:
        exec(compile(block, "<page>", "exec"), names)  # the lint reads sources by their names
    (line,) = regions.report()
    assert (line.region, line.calls, line.graphs) == ("Layer.store", 40, 1)
    printed = capsys.readouterr().out
    assert "45 graphs in all" in printed and "token-major 4096" in printed
    assert "error float64: torch.float64 begins here" in printed
    assert "Layer.store" in printed and "outside of stages" in printed
    assert not names["on_the_chip"]()
    assert names["pools"][:, 3].any(-1).all()
