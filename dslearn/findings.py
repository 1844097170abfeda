"""What lints have in common: rules, findings, and how both are printed.

`dslearn.sim.lint` reads kernel sources, `dslearn.regions.lint` reads graphs; a rule of either has
an example that breaks it and a legal twin, and a finding of either names a line of the user's file.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from dslearn.errors import UsageError

Level = Literal["error", "warn"]


@dataclass(frozen=True)
class Rule:
    """One statement: what must hold, why, what to do instead.

    `fires` breaks the rule and `legal` is its twin that does not; both are source.
    """

    id: str
    level: Level
    what: str
    why: str
    fix: str
    fires: str
    legal: str


@dataclass(frozen=True, order=True)
class Finding:
    """A broken rule at a place; `line` and `column` count from 1."""

    path: str
    line: int
    column: int
    rule: str
    level: Level
    message: str
    fix: str

    def __str__(self) -> str:
        where = f"{self.path}:{self.line}:{self.column}"
        return f"{where}: {self.level} {self.rule}: {self.message} ({self.fix})"


def errors(findings: Iterable[Finding]) -> int:
    """How many findings are errors."""
    return sum(finding.level == "error" for finding in findings)


def lines(findings: Collection[Finding], looked_at: str) -> Iterator[str]:
    """One line per finding, `path:line:col: level rule-id: message (fix)`, and a summary."""
    yield from map(str, findings)
    wrong = errors(findings)
    rest = len(findings) - wrong
    yield f"{looked_at}: {count(wrong, 'error')}, {count(rest, 'warning')}"


def as_json(findings: Iterable[Finding], **counts: int) -> str:
    """The same as one JSON object: the findings and some counts."""
    return json.dumps({"findings": [asdict(one) for one in findings], **counts}, indent=1)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Rows of cells as a Markdown table."""
    yield f"| {' | '.join(header)} |"
    yield "|" + "---|" * len(header)
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def explain(rule: Rule, fires: str, legal: str) -> Iterator[str]:
    """One rule, the example that breaks it and the legal twin."""
    yield f"{rule.id} ({rule.level}): {rule.what}"
    yield f"because {rule.why}"
    yield f"instead: {rule.fix}"
    for title, example in (("refused", fires), ("legal", legal)):
        yield from ("", f"# {title}", *example.strip().splitlines())


def check_name(name: str, known: Collection[str], option: str) -> None:
    """Raise UsageError unless `name`, given with `option`, is a rule."""
    if name not in known:
        raise UsageError(f"{option} {name}: no such rule; --rules lists them")


def count(number: int, noun: str) -> str:
    """`1 error`, `2 errors`."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def shown(path: Path) -> str:
    """`path` as seen from the working directory, where it lies below it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
