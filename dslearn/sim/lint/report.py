"""A lint run as text, as JSON, and the rules themselves as a table."""

from __future__ import annotations

from collections.abc import Iterator

from dslearn import findings
from dslearn.findings import count
from dslearn.sim.lint.examples import frame
from dslearn.sim.lint.run import RULES, Report


def lines(report: Report) -> Iterator[str]:
    """One line per finding, `path:line:col: level rule-id: message (fix)`, and a summary."""
    looked_at = f"{count(report.kernels, 'kernel')} in {count(report.files, 'file')}"
    yield from findings.lines(report.findings, looked_at)


def as_json(report: Report) -> str:
    """The same as one JSON object: findings, files, kernels, errors."""
    counts = {"files": report.files, "kernels": report.kernels, "errors": report.errors}
    return findings.as_json(report.findings, **counts)


def rules_table() -> Iterator[str]:
    """Every rule as a row of a Markdown table."""
    rows = [
        (
            f"`{rule.id}`",
            rule.level + (" (error in dslearn/kernels)" if rule.house else ""),
            rule.what,
            rule.why,
            rule.fix,
        )
        for rule in RULES.values()
    ]
    yield from findings.table(("rule", "level", "what", "because", "instead"), rows)


def explain(rule_id: str) -> Iterator[str]:
    """One rule with an example that breaks it and the legal twin.

    Raises:
        UsageError: no such rule.
    """
    findings.check_name(rule_id, RULES, "--explain")
    rule = RULES[rule_id]
    yield from findings.explain(rule, frame(rule.fires), frame(rule.legal))
