"""A profile as a table for people and as plain data for programs. Always called modelled."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from dslearn.sim.cost.summary import ENGINES, TITLES, Profile

LINKS = 6  # kinds of steps of the critical path that are printed


def as_data(profile: Profile) -> dict[str, Any]:
    """Everything but the steps, as JSON has it."""
    return {
        "modelled": True,
        "kernel": profile.kernel,
        "cores": profile.cores,
        "kernel_us": profile.us,
        "launch_us": profile.launch_us,
        "total_us": profile.total_us,
        "bound": profile.bound,
        "busy_us": {name: list(us) for name, us in profile.busy_us.items()},
        "instructions": profile.counts,
        "hbm_bytes": {"read": profile.hbm_read, "written": profile.hbm_written},
        "dma_bytes": profile.moved,
        "macs": profile.macs,
        "share_of_hbm": profile.hbm_share,
        "share_of_pe": profile.pe_share,
        "peak_bytes_per_partition": list(profile.peaks),
        "critical_path": [asdict(link) for link in profile.path],
    }


def tables(profile: Profile) -> list[Table]:
    """The tables that `show` prints."""
    return [_times(profile), _engines(profile), _path(profile)]


def show(profile: Profile, console: Console | None = None) -> None:
    """Print the profile."""
    console = console or Console(width=100, highlight=False)
    for table in tables(profile):
        console.print(table)
    console.print(f"{profile.kernel} is {profile.bound} (modelled, not measured)", soft_wrap=True)


def _times(p: Profile) -> Table:
    table = Table(title=f"{p.kernel} on {p.cores} core(s), modelled", title_justify="left")
    for name, right in (("", False), ("modelled", True), ("of the limit", True)):
        table.add_column(name, justify="right" if right else "left")
    table.add_row("kernel", f"{p.us:,.1f} µs", "")
    table.add_row("with launch", f"{p.total_us:,.1f} µs", "")
    table.add_row("HBM read", _size(p.hbm_read), "")
    table.add_row("HBM read and written", _size(p.hbm_read + p.hbm_written), f"{p.hbm_share:.1%}")
    table.add_row("multiply-adds", f"{p.macs / 1e6:,.1f} M", f"{p.pe_share:.1%}")
    for kind, limit in (("sbuf", 208 * 1024), ("psum", 16 * 1024)):
        peak = max((peak[kind] for peak in p.peaks), default=0)
        table.add_row(f"{kind.upper()} per partition", _size(peak), f"{peak / limit:.1%}")
    return table


def _engines(p: Profile) -> Table:
    table = Table(title="busy, modelled", title_justify="left")
    table.add_column("engine")
    for core in range(p.cores):
        table.add_column(f"core {core}", justify="right")
        table.add_column("of the time", justify="right")
    titles = {**TITLES, "dma": "DMA (mean of 16)"}
    for name in (*ENGINES, "dma"):
        cells = []
        for us in p.busy_us[name]:
            cells += [f"{us:,.1f} µs", f"{us / p.us if p.us else 0:.1%}"]
        table.add_row(titles[name], *cells)
    return table


def _path(p: Profile) -> Table:
    table = Table(title="critical path, modelled", title_justify="left")
    for name in ("queue", "instruction"):
        table.add_column(name)
    for name in ("steps", "time", "share"):
        table.add_column(name, justify="right")
    for link in p.path[:LINKS]:
        table.add_row(
            link.queue, link.name, str(link.count), f"{link.us:,.1f} µs", f"{link.share:.1%}"
        )
    return table


def _size(count: int) -> str:
    for unit, size in (("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count} B"
