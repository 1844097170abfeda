"""A cost model: how long a simulated kernel would take on Trainium2, and what limits it.

    from dslearn.sim.cost import profile
    print(profile(kernel[2], x, weight).bound)

Everything it says is modelled: computed from published rates (rates.yaml) and the instructions that
the stand-in simulator recorded, never measured. docs/performance.md says how far to trust it.
"""

from __future__ import annotations

from typing import Any

from dslearn.errors import UsageError
from dslearn.sim.cost.rates import Rates, load
from dslearn.sim.cost.summary import Profile, profile_recording
from dslearn.sim.jit import simulate
from dslearn.sim.record import Recording, recording

__all__ = ["Profile", "Rates", "load", "profile", "profile_recording", "record"]


def record(kernel: Any, *arguments: Any) -> Recording:
    """Simulate `kernel` (jitted, perhaps with a grid: `kernel[2]`) and return what it executed.

    Raises:
        UsageError: the kernel did not run on the stand-in, so there is nothing to model.
    """
    with recording() as launches:
        simulate(kernel)(*arguments)
    if len(launches) != 1:
        raise UsageError(f"{len(launches)} launches were recorded, must be one kernel")
    return launches[0]


def profile(kernel: Any, *arguments: Any, rates: Rates | None = None) -> Profile:
    """Simulate and model one launch of `kernel` on `arguments`.

    Raises:
        UsageError: an instruction that the model has no cost for.
    """
    return profile_recording(record(kernel, *arguments), rates or load())
