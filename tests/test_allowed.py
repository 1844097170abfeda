"""Comments that allow, in files that are no Python from end to end."""

from __future__ import annotations

import pytest

from dslearn import allowed

LINE = "x = 1  # graph: allow rule because\n"


@pytest.mark.parametrize(
    "rest", ["%%time\n", "!echo 'it\n", "y = (\n", "y = '''\n", "if x:\n    y\n  z\n"]
)
def test_what_stands_above_a_line_that_is_no_python_is_read(rest):
    assert allowed.read(LINE + rest, ["rule"], "graph").covers("rule", 1, 1)
