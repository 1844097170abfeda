"""Random numbers: the engines' generators are not documented to the bit, so not simulated.

Source: docs/reference/nki.md, section "Not simulated".
"""

from __future__ import annotations

from typing import Any, NoReturn

from dslearn.sim.isa.enums import engine as engines
from dslearn.sim.rules import NotSupportedError


def _refuse(what: str) -> NotSupportedError:
    return NotSupportedError(
        f"{what}: the hardware's generator is not documented; pass random numbers as an argument",
        rule="not-simulated",
    )


def rng(dst: Any, engine: Any = engines.vector, name: str | None = None) -> NoReturn:
    """32 random bits per element, cut to the dtype.

    Raises:
        NotSupportedError: always.
    """
    raise _refuse("rng")


def dropout(dst: Any, data: Any, prob: Any, name: str | None = None) -> NoReturn:
    """Zero elements at random.

    Raises:
        NotSupportedError: always.
    """
    raise _refuse("dropout")


def set_rng_seed(src_seeds: Any, name: str | None = None) -> NoReturn:
    """Seed the Vector engine's generator.

    Raises:
        NotSupportedError: always.
    """
    raise _refuse("set_rng_seed")


def rand_set_state(
    src_seeds: Any, engine: Any = engines.gpsimd, name: str | None = None
) -> NoReturn:
    """Set a generator's state.

    Raises:
        NotSupportedError: always.
    """
    raise _refuse("rand_set_state")


def rand_get_state(dst: Any, engine: Any = engines.gpsimd, name: str | None = None) -> NoReturn:
    """Read a generator's state.

    Raises:
        NotSupportedError: always.
    """
    raise _refuse("rand_get_state")
