"""From logits to a token id. Shapes: V vocabulary."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dslearn.errors import UsageError


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn.

    Args:
        temperature: 0 takes the largest logit (ties to the lowest id), else divides the logits.
        top_p: draw from the smallest set of tokens that holds this probability.
        seed: of the draws; None takes a fresh one.

    Raises:
        UsageError: a temperature below 0, top_p outside (0, 1], a negative seed.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UsageError(f"temperature={self.temperature}: must be 0 (greedy) or above")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top_p={self.top_p}: must be above 0 and at most 1")
        if self.seed is not None and self.seed < 0:
            raise UsageError(f"seed={self.seed}: must be 0 or above")


class Sampler:
    """Draws one token after another under one `Sampling`."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self._rng = np.random.default_rng(sampling.seed)

    def __call__(self, logits: NDArray[np.float32]) -> int:
        """Logits [V] -> token id."""
        if self.sampling.temperature == 0:
            return int(np.argmax(logits))  # the first of equals: the lowest id
        return int(self._rng.choice(len(logits), p=probabilities(logits, self.sampling)))


def probabilities(logits: NDArray[np.float32], sampling: Sampling) -> NDArray[np.float64]:
    """The distribution [V] that a temperature above 0 draws from; float64, sums to 1."""
    exact = logits.astype(np.float64)
    # Subtracted first: a tiny temperature divides 0 and negative numbers only, never overflows up.
    with np.errstate(over="ignore"):
        p = np.exp((exact - exact.max()) / sampling.temperature)
    p /= p.sum()
    if sampling.top_p < 1:
        order = np.argsort(-p, kind="stable")
        before = np.cumsum(p[order]) - p[order]  # mass of the tokens ahead of each one
        p[order[before >= sampling.top_p]] = 0
        p /= p.sum()
    return p
