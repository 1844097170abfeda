"""As many compiles of a graph as its flakiness asks for."""

from __future__ import annotations

from dslearn.regions.workshop.attempt import Attempt, Outcome
from dslearn.regions.workshop.case import Case
from dslearn.regions.workshop.statistics import SequentialTest, compiles_to_see


class Trier:
    """Tries graphs as often as a failure of some rate needs to show, and counts.

    Args:
        attempt: one compile.
        rate: failures rarer than this may be missed; 1 for a compiler that is not flaky.
        confidence: with which a failure of that rate shows.

    Raises:
        UsageError: a rate outside (0, 1], a confidence outside (0, 1).
    """

    def __init__(self, attempt: Attempt, rate: float = 1.0, confidence: float = 0.95) -> None:
        compiles_to_see(rate, confidence)  # refuses what is neither, by these names
        self.attempt, self.rate, self.miss = attempt, rate, 1 - confidence
        self.compiles = 0

    def failure(self, case: Case, like: Outcome | None = None) -> Outcome | None:
        """The first failure, or None if none shows; with `like`, one of the same signature.

        A failure is certain: it was seen. None is wrong with probability `1 - confidence` at most.
        """
        test = SequentialTest(0.0, self.rate, beta=self.miss)
        while test.verdict is None:
            outcome = self.attempt(case)
            self.compiles += 1
            if outcome.kind == "invalid":
                return None if like else outcome
            same = like is None or outcome.signature == like.signature
            failed = outcome.kind != "passed" and same
            if test.add(failed) == "above":
                return outcome
        return None
