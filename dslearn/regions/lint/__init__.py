"""Compile lint: what in a torch function the device's compiler refuses, copies or miscompiles.

A compilation for the device takes minutes and an error names an internal pass. The lint traces a
function as `torch.compile` would, asks every rule, and names lines of the user's file. Rules are
what is known of the compiler from outside; passing them is no promise. Source: docs/regions.md,
"Lint".
"""

from dslearn.findings import Finding
from dslearn.regions.lint.rule import Rule
from dslearn.regions.lint.run import RULES, Report, lint, lint_graph

__all__ = ["RULES", "Finding", "Report", "Rule", "lint", "lint_graph"]
