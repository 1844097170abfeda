"""The rule about comments that allow what a rule refuses: `# nki: allow rule-id reason`."""

from __future__ import annotations

from dslearn.sim.lint.rule import Rule

WORD = "nki"
RULES = (
    Rule(
        id="allow-comment",
        level="error",
        what="`# nki: allow` names rules that exist and gives a reason",
        why="an exception that nobody explained cannot be reviewed",
        fix="write `# nki: allow rule-id why this is right here`",
        fires="n = 2  # nki: allow value-range",
        legal="n = 2  # nki: allow value-range the compiler folds it",
    ),
)
