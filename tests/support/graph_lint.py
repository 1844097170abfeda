"""Lint a torch function and look at the rules that it breaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dslearn.regions.lint import lint


def broken(function: Callable[..., Any], *inputs: Any, **options: Any) -> list[str]:
    """The rules that a function breaks, each once, sorted."""
    return sorted({finding.rule for finding in lint(function, *inputs, **options).findings})
