"""Enum arguments of the instructions, under the vendor's names and values.

Source: docs/reference/nki.md, section "Enums".
"""

from __future__ import annotations

import enum
from typing import Any, TypeVar

from dslearn.sim.rules import ArgumentError

E = TypeVar("E", bound=enum.Enum)


class engine(enum.Enum):  # noqa: N801 - the vendor's name
    """Which engine executes; `unknown` leaves the choice to the compiler."""

    unknown = 0
    tensor = 1
    scalar = 2
    gpsimd = 3
    dma = 4
    vector = 5
    sync = 6


class reduce_cmd(enum.Enum):  # noqa: N801
    """What an instruction does with its engine's accumulator registers."""

    idle = 0
    reset = 1
    reduce = 2
    reset_reduce = 3
    load_reduce = 4


class dge_mode(enum.Enum):  # noqa: N801
    """Who makes DMA descriptors: software (GpSimd), hardware, or the host beforehand."""

    unknown = 0
    swdge = 1
    hwdge = 2
    none = 3


class oob_mode(enum.Enum):  # noqa: N801
    """What an indirect DMA does with rows out of range."""

    error = 0
    skip = 1


class matmul_perf_mode(enum.Enum):  # noqa: N801
    """`double_row` contracts two fp8 rows per cycle."""

    none = "none"
    double_row = "double_row"


class dma_engine(enum.Enum):  # noqa: N801
    """Who moves the data of an exchange between cores."""

    dma = 1
    gpsimd_dma = 2


class nc_version(enum.IntEnum):  # noqa: N801
    """NeuronCore generations: trn1, trn2, trn3; they compare in order."""

    gen2 = 2
    gen3 = 3
    gen4 = 4


def member(kind: type[E], value: Any, what: str) -> E:
    """`value` as a member of `kind`; the plain strings of older kernels are understood too.

    Raises:
        ArgumentError: a raw integer, or something else.
    """
    if isinstance(value, kind):
        return value
    if isinstance(value, str) and value in kind.__members__:
        return kind[value]
    names = ", ".join(f"{kind.__name__}.{m}" for m in kind.__members__)
    raise ArgumentError(f"{what}={value!r}: must be one of {names}", rule="arguments")
