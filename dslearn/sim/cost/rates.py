"""The constants of the cost model, read from rates.yaml and checked.

Units are in the names: GHz, GB/s (10^9 bytes), us, ns, cycles of the engine they belong to.
Source: docs/reference/nki.md, section "Hardware numbers"; each constant's own is in rates.yaml.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from dslearn.errors import UsageError

PATH = Path(__file__).with_name("rates.yaml")
SOURCES = ("documented", "third-party measurement", "fitted here", "unverified")


@dataclass(frozen=True)
class Cycles:
    """Cycles of a simple instruction: each x elements per partition, and a fixed part."""

    each: float
    fixed: float = 0.0


@dataclass(frozen=True)
class Rates:
    """One set of constants; the same for every kernel."""

    pe_ghz: float
    pe_issue_cycles: float
    pe_fp32_factor: float
    pe_cold_factor: float
    pe_warm_us: float
    vector_ghz: float
    vector_issue_cycles: float
    vector_fast_sbuf: float
    vector_fast_psum: float
    scalar_ghz: float
    scalar_issue_cycles: float
    accumulator_cycles: float
    gpsimd_ghz: float
    gpsimd_start_cycles: float
    result_cycles: float
    stride_bytes: float
    stride_factor: float
    dma_engines: float
    dma_partitions: float
    dma_peak_gbs: float
    dma_practical_gbs: float
    dma_chunk_bytes: float
    dma_latency_us: float
    dma_issue_ns: float
    hwdge_us: float
    swdge_row_ns: float
    transpose_hbm: float
    transpose_sbuf: float
    hbm_stack_gbs: float
    barrier_us: float
    register_us: float
    loop_trip_us: float
    launch_us: float
    cycles: Mapping[str, Cycles]

    def __post_init__(self) -> None:
        wrong = [n for n in names() if not 0 < getattr(self, n) < float("inf")]
        if wrong:
            raise UsageError(f"rates {', '.join(wrong)}: must be positive numbers")
        if not self.dma_engines == int(self.dma_engines):
            raise UsageError(f"rate dma_engines={self.dma_engines}: must be a whole number")

    def scaled(self, name: str, factor: float) -> Rates:
        """The same constants with one multiplied: a name, or `cycles.` and an instruction.

        Raises:
            UsageError: no such constant.
        """
        instruction = name.removeprefix("cycles.")
        if name != instruction and instruction in self.cycles:
            old = self.cycles[instruction]
            new = Cycles(old.each * factor, old.fixed * factor)
            return replace(self, cycles={**self.cycles, instruction: new})
        if name not in names():
            raise UsageError(f"no rate {name!r}: rates.yaml has {', '.join(names())}")
        return replace(self, **{name: getattr(self, name) * factor})


def names() -> tuple[str, ...]:
    """The constants, without the table of cycles."""
    return tuple(f.name for f in fields(Rates) if f.name != "cycles")


def parse(text: str) -> Rates:
    """`text`, in the form of rates.yaml, as rates.

    Raises:
        UsageError: a constant that is missing, unknown, without a source or not a number.
    """
    table = yaml.safe_load(text)
    constants, cycles = table["constants"], table["cycles"]
    odd = set(constants) ^ set(names())
    if odd:
        raise UsageError(f"rates.yaml: missing or unknown constants {sorted(odd)}")
    for name, entry in {**constants, **cycles}.items():
        if entry.get("source") not in SOURCES:
            raise UsageError(f"rates.yaml {name}: source must be one of {', '.join(SOURCES)}")
    try:
        values = {name: float(entry["value"]) for name, entry in constants.items()}
        each = {n: Cycles(float(e["each"]), float(e.get("fixed", 0))) for n, e in cycles.items()}
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"rates.yaml: every constant has a number as value ({error})") from None
    return Rates(**values, cycles=each)


@cache
def load() -> Rates:
    """The constants that ship with dslearn."""
    return parse(PATH.read_text(encoding="utf-8"))


def described() -> dict[str, dict[str, Any]]:
    """The constants of rates.yaml as written: value, unit, source, note."""
    constants: dict[str, dict[str, Any]] = yaml.safe_load(PATH.read_text(encoding="utf-8"))[
        "constants"
    ]
    return constants
