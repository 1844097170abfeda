"""What a rule about kernel source is, and what breaks it."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from dslearn import findings


@dataclass(frozen=True)
class Rule(findings.Rule):
    """One statement about kernel source.

    The examples are a whole file when they define a function, otherwise statements of a kernel
    (`examples.frame`).

    Attributes:
        house: a convention of this repository: an error in `dslearn/kernels`, whatever `level`.
    """

    house: bool = False


@dataclass(frozen=True)
class Hit:
    """A rule broken at a node of the syntax tree; `message` says by what.

    `fix` replaces the rule's own advice where the node calls for something special.
    """

    rule: str
    node: ast.AST
    message: str
    fix: str = ""
