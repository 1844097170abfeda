"""`dslearn profile`: the cost model on the command line."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from dslearn.errors import UsageError


# One parameter per option is how typer reads a command line.
def profile(  # noqa: PLR0913
    kernel: Annotated[
        str, typer.Argument(help="rmsnorm, fp8_folded, ... or a path module:function.")
    ],
    shape: Annotated[
        list[str],
        typer.Option(
            help="As 64x5120. For module:function one per argument: 64x5120:bfloat16, 1e-6, 7:int."
        ),
    ],
    cores: Annotated[int, typer.Option(min=1, max=2, help="Physical cores, 1 or 2.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    trace: Annotated[str | None, typer.Option(help="Write a Chrome/Perfetto trace.")] = None,
    plot: Annotated[str | None, typer.Option(help="Draw the time line (matplotlib).")] = None,
) -> None:
    """Model the time of a kernel on Trainium2: who is busy, what limits it. Nothing is measured."""
    from dslearn import profiling
    from dslearn.sim.cost import plot as picture
    from dslearn.sim.cost import report
    from dslearn.sim.cost import trace as events

    if plot is not None:
        picture.check(plot)
    result = profiling.profile(kernel, shape, cores)
    if trace is not None:
        try:
            events.write(result, trace)
        except OSError as error:
            raise UsageError(f"--trace {trace}: {error.strerror}") from error
    if plot is not None:
        picture.save(result, plot)
    if as_json:
        print(json.dumps(report.as_data(result)))
    else:
        report.show(result)
