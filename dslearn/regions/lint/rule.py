"""What a rule about graphs is, and what breaks it."""

from __future__ import annotations

from dataclasses import dataclass

from dslearn import findings
from dslearn.regions.lint.place import Place


@dataclass(frozen=True)
class Rule(findings.Rule):
    """One statement about graphs.

    The examples are source that defines `step`, the function to compile, and `inputs`, a tuple
    (`examples.load`).

    Attributes:
        code: the compiler's own code for what the rule guards against, as in its messages and
            release notes; "-" where there is none.
    """

    code: str = "-"


@dataclass(frozen=True)
class Hit:
    """A rule broken at a line; `message` says by what.

    `fix` replaces the rule's own advice where the case calls for something special.
    """

    rule: str
    place: Place
    message: str
    fix: str = ""
