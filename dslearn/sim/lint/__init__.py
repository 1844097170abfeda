"""Source lint for the rules of the kernel language, which running a kernel cannot check.

A simulator executes any Python; the compiler for the device reads a small part of it. The lint
reads kernel sources, never imports or runs them, and is no part of simulating.
Source: docs/reference/nki.md, "Language rules"; docs/kernels.md shows each rule.
"""

from dslearn.findings import Finding
from dslearn.sim.lint.rule import Rule
from dslearn.sim.lint.run import RULES, Report, lint

__all__ = ["RULES", "Finding", "Report", "Rule", "lint"]
