"""How many compiles a statement about a flaky compiler takes.

Compiles count as independent, each crashing with the same unknown probability, the rate. Sources:
C. J. Clopper and E. S. Pearson, Biometrika 26 (1934), for the interval; A. Wald, Annals of
Mathematical Statistics 16 (1945), for the sequential test.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, comb, inf, log, log1p
from typing import Literal

from dslearn.errors import UsageError

Verdict = Literal["above", "below"]


def compiles_to_see(rate: float, confidence: float = 0.95) -> int:
    """Compiles after which a crash of this rate has shown at least once, with that confidence.

    The smallest n with 1 - (1 - rate)^n >= confidence: 29 for .1, 14 for .2, 9 for .3, 5 for .5.

    Raises:
        UsageError: a rate outside (0, 1], a confidence outside (0, 1).
    """
    _check("rate", rate, 0 < rate <= 1, "above 0 and at most 1")
    _check("confidence", confidence, 0 < confidence < 1, "between 0 and 1")
    return 1 if rate == 1 else ceil(log1p(-confidence) / log1p(-rate))


def rate_interval(crashes: int, compiles: int, confidence: float = 0.95) -> tuple[float, float]:
    """Bounds of the crash rate after `crashes` of `compiles`: Clopper and Pearson's, exact.

    They hold the true rate at least as often as they claim, also for few compiles and for none or
    all of them crashing, where approximations (Wald's, Wilson's) may fall short.

    Raises:
        UsageError: more crashes than compiles, no compiles, a confidence outside (0, 1).
    """
    possible = 0 <= crashes <= compiles and compiles > 0
    _check("crashes", crashes, possible, f"from 0 to the number of compiles ({compiles})")
    _check("confidence", confidence, 0 < confidence < 1, "between 0 and 1")
    tail = (1 - confidence) / 2
    low, high = 0.0, 1.0
    if crashes > 0:  # the rate at which so many crashes, or more, are that rare
        low = _solve(lambda rate: at_least(crashes, compiles, rate) - tail)
    if crashes < compiles:  # the rate at which so few are that rare
        high = _solve(lambda rate: at_least(crashes + 1, compiles, rate) - (1 - tail))
    return low, high


def at_least(crashes: int, compiles: int, rate: float) -> float:
    """Probability of that many crashes or more."""
    return sum(
        comb(compiles, k) * rate**k * (1 - rate) ** (compiles - k)
        for k in range(crashes, compiles + 1)
    )


def _solve(rising: Callable[[float], float]) -> float:
    """Where a rising function on [0, 1] crosses zero, by bisection down to a float's last bit."""
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return middle


class SequentialTest:
    """Does a graph fail at a rate of `high` or more, or of `low` or less? Asks as often as needed.

    The likelihood of what was seen under `high` over that under `low` is followed; above 1/alpha
    the verdict is "above", below beta it is "below". With these bounds (Wald's, rounded to the
    safe side) a graph of rate <= low is called "above" with probability at most alpha, and one of
    rate >= high is called "below" with probability at most beta. Between the two rates either
    verdict may come, and it may take longest.

    With `low` 0 one crash decides, and `compiles_to_see(high, 1 - beta)` compiles without one do.
    """

    def __init__(self, low: float, high: float, alpha: float = 0.05, beta: float = 0.05) -> None:
        """Begin with no compiles seen.

        Raises:
            UsageError: rates not in the order 0 <= low < high <= 1, errors outside (0, 1).
        """
        _check("low", low, 0 <= low < high, f"from 0 to below high ({high})")
        _check("high", high, high <= 1, "at most 1")
        for name, error in (("alpha", alpha), ("beta", beta)):
            _check(name, error, 0 < error < 1, "between 0 and 1")
        self._crash = log(high / low) if low else inf
        self._pass = (log1p(-high) if high < 1 else -inf) - log1p(-low)
        self._above, self._below = -log(alpha), log(beta)
        self._sum = 0.0
        self.compiles = 0
        self.verdict: Verdict | None = None

    def add(self, crashed: bool) -> Verdict | None:
        """Count one more compile; -> the verdict, once there is one it stays."""
        self.compiles += 1
        self._sum += self._crash if crashed else self._pass
        if self.verdict is None and self._sum >= self._above:
            self.verdict = "above"
        elif self.verdict is None and self._sum <= self._below:
            self.verdict = "below"
        return self.verdict


def _check(name: str, value: float, fine: bool, allowed: str) -> None:
    if not fine:
        raise UsageError(f"{name}={value}: must be {allowed}")
