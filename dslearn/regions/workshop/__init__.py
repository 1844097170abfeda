"""The workshop for a fragile compiler: how often it fails, on what, and how to do without.

Any backend of torch.compile can be tried, and a stand-in with planted faults. Source:
docs/regions.md, "When the compiler fails".
"""

from dslearn.regions.workshop.attempt import Outcome, here, in_child
from dslearn.regions.workshop.case import Case, capture
from dslearn.regions.workshop.differential import Mismatch, differential
from dslearn.regions.workshop.reduce import Reduction, reduce
from dslearn.regions.workshop.reproducer import source
from dslearn.regions.workshop.rule_compiler import CompilerCrash, Fault, RuleCompiler
from dslearn.regions.workshop.split import Split, split
from dslearn.regions.workshop.statistics import SequentialTest, compiles_to_see, rate_interval

__all__ = [
    "Case",
    "CompilerCrash",
    "Fault",
    "Mismatch",
    "Outcome",
    "Reduction",
    "RuleCompiler",
    "SequentialTest",
    "Split",
    "capture",
    "compiles_to_see",
    "differential",
    "here",
    "in_child",
    "rate_interval",
    "reduce",
    "source",
    "split",
]
