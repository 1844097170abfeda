"""A lint run as text, as JSON, and the rules themselves as a table."""

from __future__ import annotations

from collections.abc import Iterator

from dslearn import findings
from dslearn.errors import UsageError
from dslearn.findings import count
from dslearn.regions.lint.run import RULES, Levels, Report


def lines(report: Report) -> Iterator[str]:
    """One line per finding, `path:line:col: level rule-id: message (fix)`, and a summary."""
    yield from findings.lines(report.findings, count(report.operations, "operation"))


def as_json(report: Report) -> str:
    """The same as one JSON object: findings, operations, errors."""
    counts = {"operations": report.operations, "errors": report.errors}
    return findings.as_json(report.findings, **counts)


def merged(reports: dict[str, Report]) -> Report:
    """Several reports as one; what several found counts once."""
    found = {finding for report in reports.values() for finding in report.findings}
    return Report(tuple(sorted(found)), sum(report.operations for report in reports.values()))


def rules_table() -> Iterator[str]:
    """Every rule as a row of a Markdown table."""
    rows = [
        (f"`{rule.id}`", rule.level, rule.what, rule.why, rule.fix, rule.code)
        for rule in RULES.values()
    ]
    header = ("rule", "level", "what", "because", "instead", "guards against")
    yield from findings.table(header, rows)


def explain(rule_id: str) -> Iterator[str]:
    """One rule with an example that breaks it and the legal twin.

    Raises:
        UsageError: no such rule.
    """
    findings.check_name(rule_id, RULES, "--explain")
    rule = RULES[rule_id]
    yield from findings.explain(rule, rule.fires, rule.legal)


def levels(settings: list[str]) -> Levels:
    """`rule=level` settings as `lint` takes them.

    Raises:
        UsageError: a setting of another form.
    """
    found: dict[str, str] = {}
    for setting in settings:
        name, equals, level = setting.partition("=")
        if not equals:
            raise UsageError(f"--level {setting}: must be RULE=LEVEL, as in float64=off")
        found[name] = level
    return found
