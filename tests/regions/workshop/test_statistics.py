"""Numbers of compiles, intervals and sequential tests, against published and summed values."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslearn.errors import UsageError
from dslearn.regions.workshop import SequentialTest, compiles_to_see, rate_interval


@pytest.mark.parametrize(("rate", "compiles"), [(0.1, 29), (0.2, 14), (0.3, 9), (0.5, 5), (1, 1)])
def test_compiles_to_see_a_crash_are_the_published_ones(rate, compiles):
    assert compiles_to_see(rate) == compiles


@given(st.floats(0.001, 1), st.floats(0.01, 0.999))
def test_compiles_to_see_is_the_smallest_number_that_does(rate, confidence):
    n = compiles_to_see(rate, confidence)
    assert n >= 1
    assert 1 - (1 - rate) ** n >= confidence - 1e-9
    assert n == 1 or 1 - (1 - rate) ** (n - 1) < confidence + 1e-9


@pytest.mark.parametrize(
    ("crashes", "compiles", "confidence", "low", "high"),
    [
        (682, 925, 0.95, 0.7076683, 0.7654066),  # R, help page of binom.test (Mendel's peas)
        (3, 15, 0.90, 0.05684686759024681, None),  # SciPy, binomtest: one-sided 95 %
        (0, 10, 0.95, 0.0, 1 - 0.025 ** (1 / 10)),  # closed forms at the ends
        (10, 10, 0.95, 0.025 ** (1 / 10), 1.0),
        (1, 1, 0.95, 0.025, 1.0),
    ],
)
def test_intervals_are_the_published_ones(crashes, compiles, confidence, low, high):
    found = rate_interval(crashes, compiles, confidence)
    assert found[0] == pytest.approx(low, abs=5e-8)
    assert high is None or found[1] == pytest.approx(high, abs=5e-8)


@pytest.mark.parametrize("compiles", [1, 7, 29])
@pytest.mark.parametrize("rate", [0.01, 0.1, 0.37, 0.5, 0.9])
def test_an_interval_holds_the_rate_as_often_as_it_claims(compiles, rate):
    def probability(k):
        return math.comb(compiles, k) * rate**k * (1 - rate) ** (compiles - k)

    intervals = [rate_interval(k, compiles) for k in range(compiles + 1)]
    covered = sum(probability(k) for k, (a, b) in enumerate(intervals) if a <= rate <= b)
    assert covered >= 0.95
    assert intervals == sorted(intervals), "more crashes, a higher rate"
    for (a, b), mirrored in zip(intervals, intervals[::-1], strict=True):
        assert (1 - b, 1 - a) == pytest.approx(mirrored), "passes are crashes the other way round"


def verdicts(low: float, high: float, rate: float, alpha: float, beta: float) -> dict[str, float]:
    """Probability of each verdict, by summing over all courses that a test can take."""
    open_, found = {0: 1.0}, {"above": 0.0, "below": 0.0}
    for n in range(1, 3000):
        following: dict[int, float] = {}
        for crashes, mass in open_.items():
            for crashed, p in ((1, rate), (0, 1 - rate)):
                k = crashes + crashed
                ratio = k * math.log(high / low) + (n - k) * math.log((1 - high) / (1 - low))
                if ratio >= math.log(1 / alpha):
                    found["above"] += mass * p
                elif ratio <= math.log(beta):
                    found["below"] += mass * p
                else:
                    following[k] = following.get(k, 0.0) + mass * p
        open_ = following
        if sum(open_.values()) < 1e-12:
            break
    return found


@pytest.mark.parametrize(
    ("low", "high", "alpha", "beta"),
    [(0.1, 0.3, 0.02, 0.03), (0.05, 0.2, 0.05, 0.05), (0.3, 0.5, 0.1, 0.01)],
)
def test_both_errors_of_a_sequential_test_are_bounded(low, high, alpha, beta):
    assert 0 < verdicts(low, high, low, alpha, beta)["above"] <= alpha
    assert 0 < verdicts(low, high, high, alpha, beta)["below"] <= beta
    assert verdicts(low, high, low / 2, alpha, beta)["above"] <= alpha
    assert verdicts(low, high, (1 + high) / 2, alpha, beta)["below"] <= beta


@given(st.lists(st.booleans(), max_size=80))
def test_a_sequential_test_takes_the_course_that_was_summed(crashes):
    test, k = SequentialTest(0.1, 0.3, 0.02, 0.03), 0
    for n, crashed in enumerate(crashes, 1):
        k += crashed
        ratio = (0.3 / 0.1) ** k * (0.7 / 0.9) ** (n - k)
        expected = "above" if ratio >= 1 / 0.02 else "below" if ratio <= 0.03 else None
        assert test.add(crashed) == expected
        if expected:
            assert test.add(not crashed) == expected, "a verdict stays"
            break
    assert test.compiles <= len(crashes) + 1


@pytest.mark.parametrize("rate", [0.1, 0.2, 0.3, 0.5, 1.0])
def test_against_rate_zero_one_crash_decides_and_so_do_enough_passes(rate):
    assert SequentialTest(0, rate).add(True) == "above"
    test = SequentialTest(0, rate, beta=0.05)
    while test.add(False) is None:
        assert test.compiles < 100
    assert (test.verdict, test.compiles) == ("below", compiles_to_see(rate))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: compiles_to_see(0), "rate=0: must be above 0"),
        (lambda: compiles_to_see(0.1, 1), "confidence=1: must be between 0 and 1"),
        (lambda: rate_interval(3, 2), "crashes=3: must be from 0 to"),
        (lambda: rate_interval(0, 0), "crashes=0: must be from 0 to"),
        (lambda: SequentialTest(0.3, 0.1), "low=0.3: must be from 0 to below high"),
        (lambda: SequentialTest(0.3, 1.1), "high=1.1: must be at most 1"),
        (lambda: SequentialTest(0.1, 0.3, alpha=0), "alpha=0: must be between 0 and 1"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(call, said):
    with pytest.raises(UsageError, match=said):
        call()
