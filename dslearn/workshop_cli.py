"""`dslearn workshop rate | reduce | split`: what a compiler fails on, how often, and what is left.

Exit codes: 0 fine, 1 there were failures (`rate`), 2 wrong usage.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dslearn.regions.workshop import Case
    from dslearn.regions.workshop.attempt import Attempt

app = typer.Typer(help="Find out what a compiler fails on.", no_args_is_help=True)

Target = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:FUNCTION",
        help="What to compile; without --input, it returns (function, inputs...).",
    ),
]
Given = Annotated[
    list[str] | None,
    typer.Option("--input", help="An input, as in float32[2,8]; repeatable, in order."),
]
Backend = Annotated[str, typer.Option(help="A backend of torch.compile, or MODULE:FUNCTION.")]
Rate = Annotated[float, typer.Option(help="Failures rarer than this may be missed.")]
Timeout = Annotated[
    float,
    typer.Option(help="Seconds for one compile, in a process of its own; 0 compiles in this one."),
]


@app.command()
def rate(  # noqa: PLR0913
    target: Target,
    backend: Backend,
    given: Given = None,
    compiles: Annotated[int, typer.Option(min=1, help="How many.")] = 29,
    timeout: Timeout = 3600.0,
) -> None:
    """Compile a function repeatedly; print what failed and the rate's 95% interval."""
    from dslearn.regions.workshop import rate_interval

    case, attempt = _case(target, given), _attempt(backend, timeout)
    failed = 0
    for i in range(1, compiles + 1):
        outcome = attempt(case)
        if outcome.kind != "passed":
            failed += 1
            print(f"compile {i}: {outcome.kind}: {outcome.text}", flush=True)
    low, high = rate_interval(failed, compiles)
    print(f"{failed} of {compiles} compiles failed: a rate between {low:.3f} and {high:.3f}")
    raise typer.Exit(1 if failed else 0)


@app.command()
def reduce(  # noqa: PLR0913
    target: Target,
    backend: Backend,
    out: Annotated[Path, typer.Option(help="The file to write.")],
    given: Given = None,
    rate: Rate = 1.0,
    timeout: Timeout = 3600.0,
) -> None:
    """Reduce a function that fails to a few operations, written as a Python file."""
    from dslearn.errors import UsageError
    from dslearn.regions import workshop

    # Asked now: what is found after hours must not be lost.
    if out.is_dir() or not os.access(out if out.exists() else out.parent, os.W_OK):
        raise UsageError(f"--out {out}: must be a file, in a folder that is there and writable")
    case, attempt = _case(target, given), _attempt(backend, timeout)
    with _progress() as on_step:
        found = workshop.reduce(case, attempt, rate=rate, on_step=on_step)
    out.write_text(workshop.source(found.case, found.title), encoding="utf-8")
    print(f"{found.title}\nTry again: python {out} --backend {backend}")


@app.command()
def split(
    target: Target,
    backend: Backend,
    given: Given = None,
    rate: Rate = 1.0,
    timeout: Timeout = 3600.0,
) -> None:
    """Cut a function into the fewest pieces that compile; print their operations."""
    from dslearn.regions import workshop

    case, attempt = _case(target, given), _attempt(backend, timeout)
    with _progress() as on_step:
        found = workshop.split(case, attempt, rate=rate, on_step=on_step)
    for i, piece in enumerate(found.pieces, 1):
        names = [node.name for node in piece.operations]
        print(f"piece {i}: {len(names)} operations, {names[0]} to {names[-1]}")
    print(f"{len(found.pieces)} pieces, found in {found.compiles} compiles")


def _case(target: str, given: list[str] | None) -> Case:
    from dslearn.regions.lint import targets
    from dslearn.regions.workshop import capture

    function, inputs = targets.call(target, given or [])
    return capture(function, *inputs)


def _attempt(backend: str, timeout: float) -> Attempt:
    from dslearn.regions.workshop import here, in_child

    return in_child(backend, timeout) if timeout else here(backend)


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A line on a terminal that says how far it is."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("first compile", total=None)
        yield lambda compiles, left: bar.update(
            task, description=f"{compiles} compiles, {left} operations left"
        )
