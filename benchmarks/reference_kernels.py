"""How far to trust the cost model: four published times of one engine on Trainium2, modelled.

    python benchmarks/reference_kernels.py [--sensitivity] [--write]

The engine's kernels are not public; their descriptions say "dequantise on the vector engine, then
GEMM". dslearn.kernels.naive_fp8 and naive_fp4 are written that way. They run in the simulator at
full size, and the model times what was executed, with the constants of dslearn/sim/cost/rates.yaml
and no others. Only the launch was fitted, to the fp8 pair; both fp4 times are predicted.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from dslearn import profiling
from dslearn.sim.cost import Rates, load, record
from dslearn.sim.cost.rates import described, names
from dslearn.sim.cost.schedule import Edge, dependencies, schedule
from dslearn.sim.record import Instruction, Recording

# Kernel, rows x inputs x outputs, published ms on one core and on two.
PUBLISHED = (
    ("naive_fp8", "1x1280x36864", (2.22, 1.17)),
    ("naive_fp4", "64x5120x4608", (0.68, 0.40)),
)
PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
LANES = 128
SHOWN = 0.005  # constants that move no time by this much are left out of the table


@dataclass(frozen=True)
class Run:
    """One recorded launch and what was published about it."""

    kernel: str
    shape: str
    cores: int
    published_ms: float
    recording: Recording
    waits: list[list[Edge]]

    def ms(self, rates: Rates) -> float:
        """Modelled kernel time."""
        return max(s.finish for s in schedule(self.recording, rates, self.waits)) / 1e6

    def total_ms(self, rates: Rates) -> float:
        """Modelled kernel time and one launch: what the published times seem to hold."""
        return self.ms(rates) + rates.launch_us / 1e3


def runs() -> list[Run]:
    """Simulate and record all four."""
    found = []
    for kernel, shape, published in PUBLISHED:
        for cores, ms in zip((1, 2), published, strict=True):
            jitted, arguments = profiling.named(kernel, [shape])
            recording = record(jitted[cores], *arguments)
            found.append(Run(kernel, shape, cores, ms, recording, dependencies(recording)))
    return found


def passes(run: Run, rates: Rates) -> dict[str, float]:
    """Vector cycles per weight element by instruction: the sequence that the time comes from."""
    _, inputs, outputs = (int(n) for n in run.shape.split("x"))
    per_lane = inputs * outputs / LANES
    cycles: dict[str, float] = defaultdict(float)
    for step in schedule(run.recording, rates, run.waits):
        if step.work.queue == "vector":
            cycles[step.instruction.name] += (step.end - step.start) * rates.vector_ghz
    return {name: total / per_lane for name, total in cycles.items()}


def table(found: list[Run], rates: Rates) -> Iterator[tuple[str, ...]]:
    """Rows: kernel, shape, cores, published, modelled kernel, with launch, error."""
    yield "kernel", "shape", "cores", "published ms", "kernel ms", "with launch ms", "error"
    for run in found:
        total = run.total_ms(rates)
        yield (
            *(run.kernel, run.shape, str(run.cores), f"{run.published_ms:.2f}"),
            *(f"{run.ms(rates):.3f}", f"{total:.3f}", f"{total / run.published_ms - 1:+.1%}"),
        )


def interleaved(run: Run) -> Run:
    """The same instructions with every product right behind the copy of its transposed weight.

    Data allow that order too. The kernels first transpose a whole group of weights.
    """
    cores = []
    for core in run.recording.cores:
        copies = {o.storage for i in core if i.name == "tensor_copy" for o in i.outputs}
        behind = {
            i.inputs[1].storage: i
            for i in core
            if i.name == "nc_matmul" and i.inputs[1].storage in copies
        }
        order: list[Instruction] = []
        for one in core:
            if one.name == "nc_matmul" and one.inputs[1].storage in behind:
                continue
            order.append(one)
            if one.name == "tensor_copy" and one.outputs[0].storage in behind:
                order.append(behind[one.outputs[0].storage])
        cores.append(order)
    recording = replace(run.recording, cores=cores)
    return replace(run, recording=recording, waits=dependencies(recording))


def ratios(found: list[Run], rates: Rates) -> Iterator[tuple[str, ...]]:
    """Rows: kernel, one core over two as published and as modelled, error."""
    yield "kernel", "one core / two, published", "modelled", "error"
    for one, two in zip(found[::2], found[1::2], strict=True):
        published = one.published_ms / two.published_ms
        ratio = one.total_ms(rates) / two.total_ms(rates)
        yield one.kernel, f"{published:.3f}", f"{ratio:.3f}", f"{ratio / published - 1:+.1%}"


def sensitivity(found: list[Run], rates: Rates) -> Iterator[tuple[str, ...]]:
    """Rows: constant, then the change of each time when it is 20% smaller / larger."""
    titles = [f"{run.kernel} on {run.cores}" for run in found]
    yield "constant", *titles
    before = [run.total_ms(rates) for run in found]
    for name in (*names(), *(f"cycles.{instruction}" for instruction in rates.cycles)):
        if name in ("dma_engines", "dma_partitions"):  # whole numbers of hardware
            continue
        cells, largest = [], 0.0
        for run, ms in zip(found, before, strict=True):
            changes = [run.total_ms(rates.scaled(name, f)) / ms - 1 for f in (0.8, 1.2)]
            largest = max(largest, *map(abs, changes))
            cells.append(" / ".join(f"{c:+.1%}" for c in changes))
        if largest >= SHOWN:
            yield name, *cells


def sequence(found: list[Run], rates: Rates) -> Iterator[tuple[str, ...]]:
    """Rows: kernel, instruction, Vector cycles per weight element."""
    yield "kernel", "Vector instruction", "cycles per weight element"
    for run in found[::2]:
        parts = passes(run, rates)
        for name, count in sorted(parts.items(), key=lambda item: -item[1]):
            yield run.kernel, name, f"{count:.2f}"
        yield run.kernel, "all", f"{sum(parts.values()):.2f}"


def constants() -> Iterator[tuple[str, ...]]:
    """Rows: constant, value, unit, source, note: rates.yaml."""
    yield "constant", "value", "unit", "source", "note"
    for name, entry in described().items():
        note = " ".join(str(entry.get("note", "")).split())
        yield name, f"{entry['value']:g}", entry["unit"], entry["source"], note


def lines(rows: Iterator[tuple[str, ...]]) -> list[str]:
    """A table of rows, the first of which is the heading, in markdown."""
    heading, *rest = (f"| {' | '.join(row)} |" for row in rows)
    return [heading, "|" + "---|" * (heading.count(" | ") + 1), *rest]


def replaced(page: str, name: str, rows: Iterator[tuple[str, ...]]) -> str:
    """`page` with the table between the marks of `name` written again."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, _, rest = page.partition(begin)
    _, mark, after = rest.partition(end)
    assert mark, f"docs/performance.md: no marks of {name!r}"
    return before + begin + "\n".join(lines(rows)) + "\n" + end + after


def tables(found: list[Run], rates: Rates) -> dict[str, Iterator[tuple[str, ...]]]:
    """The tables of docs/performance.md that need no repeated modelling, by their marks."""
    return {
        "rates": constants(),
        "reference kernels": table(found, rates),
        "ratios": ratios(found, rates),
        "another order": table([interleaved(run) for run in found], rates),
        "sequence": sequence(found, rates),
    }


def main() -> None:
    """Record, model, print; with --write, into docs/performance.md."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sensitivity", action="store_true", help="each constant by 20%%")
    parser.add_argument("--write", action="store_true", help="write docs/performance.md, all of it")
    options = parser.parse_args()
    rates, found = load(), runs()
    every = tables(found, rates)
    if options.sensitivity or options.write:
        every["sensitivity"] = sensitivity(found, rates)
    page = PAGE.read_text(encoding="utf-8") if options.write else ""
    print("Modelled, not measured.")
    for name, rows in every.items():
        if options.write:
            page = replaced(page, name, rows)
        else:
            print(f"\n{name}\n\n" + "\n".join(lines(rows)))
    if options.write:
        PAGE.write_text(page, encoding="utf-8")
        print(f"{PAGE} is written")


if __name__ == "__main__":
    main()
