"""What happens when in a training run, as a function of the fraction of its time that is spent."""

from __future__ import annotations

from dataclasses import dataclass

DENSE_UNTIL = 0.12  # attend to every entry while the indexer learns what attention looks at
LONG_FROM = 0.62  # 512-token chunks
DECAY_FROM = 0.40  # learning rate falls linearly from here
QUANTISED_FROM = 0.84  # forward through stored weights, quantised activations and caches
WARMUP = 0.01


@dataclass(frozen=True)
class Phase:
    """Settings of one step: learning-rate factor, chunk length, selection, quantisation."""

    rate: float
    length: int
    dense: bool
    quantised: bool


def phase(fraction: float) -> Phase:
    """The settings at `fraction` (0..1) of the run."""
    rate = min(1.0, fraction / WARMUP + 0.05)
    if fraction > DECAY_FROM:
        rate = max(0.02, (1 - fraction) / (1 - DECAY_FROM))
    return Phase(
        rate,
        512 if fraction >= LONG_FROM else 256,
        fraction < DENSE_UNTIL,
        fraction >= QUANTISED_FROM,
    )
