"""What one instruction asks of the machine: which queue, for how long, and what it moves.

Times are nanoseconds. Source: docs/reference/nki.md, section "Hardware numbers".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dslearn.errors import UsageError
from dslearn.sim.cost import dma, engines
from dslearn.sim.cost.rates import Rates
from dslearn.sim.record import Instruction


class Work(NamedTuple):
    """The queue is taken for `busy`; results are visible `latency` after that, or after a DMA."""

    queue: str
    busy: float
    latency: float
    transfer: dma.Transfer | None = None
    meets: bool = False  # waits for the same instruction of the other core


def _engine(cycles: engines.Formula) -> Callable[[Instruction, Rates], Work]:
    def cost(one: Instruction, rates: Rates) -> Work:
        clock, issue = engines.clock(one.engine, rates)
        return Work(one.engine, cycles(one, rates, issue) / clock, rates.result_cycles / clock)

    return cost


def _product(one: Instruction, rates: Rates) -> Work:
    cycles, part = engines.product(one, rates)
    rest = cycles * (1 - part) + rates.result_cycles
    return Work("tensor", cycles * part / rates.pe_ghz, rest / rates.pe_ghz)


def _transpose(one: Instruction, rates: Rates) -> Work:
    if one.engine == "tensor":
        cycles = engines.pe_transpose(one, rates)
        return Work("tensor", cycles / rates.pe_ghz, rates.result_cycles / rates.pe_ghz)
    clock, issue = engines.clock(one.engine, rates)
    n = one.details["f"]
    return Work(one.engine, max(issue, n) / clock, rates.result_cycles / clock)


def _dma(one: Instruction, rates: Rates) -> Work:
    moved = dma.transfer(one, rates)
    latency = rates.dma_latency_us * 1e3
    if one.details.get("dge") == "swdge":
        return Work("gpsimd", moved.rows * rates.swdge_row_ns, latency, moved)
    if one.details.get("dge") == "hwdge" and one.details.get("issuer") != "scalar":
        latency += rates.hwdge_us * 1e3
    return Work(f"dma {moved.direction}", rates.dma_issue_ns, latency, moved)


def _exchange(one: Instruction, rates: Rates) -> Work:
    moved = dma.transfer(one, rates)
    return Work("dma exchange", rates.dma_issue_ns, rates.dma_latency_us * 1e3, moved, True)


def _barrier(one: Instruction, rates: Rates) -> Work:
    return Work(one.engine, rates.barrier_us * 1e3, 0.0, None, True)


def _register(one: Instruction, rates: Rates) -> Work:
    return Work(one.engine, rates.register_us * 1e3, 0.0)


def _free(one: Instruction, rates: Rates) -> Work:
    return Work(one.engine, 0.0, 0.0)


TABLE: dict[str, Callable[[Instruction, Rates], Work]] = {
    "nc_matmul": _product,
    "nc_transpose": _transpose,
    "dma_copy": _dma,
    "dma_transpose": _dma,
    "dma_compute": _dma,
    "sendrecv": _exchange,
    "core_barrier": _barrier,
    "register_load": _register,
    "register_store": _register,
    "register_move": _free,  # happens in the sequencer, between instructions
    **{name: _engine(formula) for name, formula in engines.FORMULAS.items()},
}


def work(one: Instruction, rates: Rates) -> Work:
    """What `one` costs.

    Raises:
        UsageError: an instruction that the model has no cost for.
    """
    cost = TABLE.get(one.name)
    if cost is None:
        raise UsageError(
            f"the cost model does not know instruction {one.name} on {one.engine}: add it to "
            "dslearn/sim/cost/work.py and rates.yaml"
        )
    return cost(one, rates)
