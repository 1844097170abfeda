"""`dslearn lint kernels | graph | model`: the lints on the command line.

Exit codes: 0 no errors (warnings are printed), 1 errors, 2 wrong usage.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Check what the device's compilers would refuse.", no_args_is_help=True)
KERNELS = Path(__file__).parent / "kernels"
TINY = Path(__file__).parent / "data" / "tiny"

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Table = Annotated[bool, typer.Option("--rules", help="Print all rules as a table.")]
Explain = Annotated[str | None, typer.Option(help="Print this rule with examples.")]
Levels = Annotated[
    list[str] | None, typer.Option("--level", help="RULE=error, warn or off; repeatable.")
]


@app.callback()
def _lint() -> None:
    """Check what the device's compilers would refuse."""


# One parameter per option is how typer reads a command line.
@app.command()
def kernels(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[PATH]...", help="Files or folders; by default dslearn's own."),
    ] = None,
    off: Annotated[list[str] | None, typer.Option(help="Turn a rule off; repeatable.")] = None,
    as_json: AsJson = False,
    rules: Table = False,
    explain: Explain = None,
) -> None:
    """Report where NKI kernels leave the language that compiles for the device."""
    from dslearn.sim.lint import lint, report

    if rules or explain is not None:
        _print(report.rules_table() if explain is None else report.explain(explain))
        return
    result = lint(paths or [KERNELS], off=off or ())
    _print([report.as_json(result)] if as_json else report.lines(result))
    raise typer.Exit(1 if result.errors else 0)


@app.command()
def graph(  # noqa: PLR0913
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE:FUNCTION",
            help="What to compile; without --input, it returns (function, inputs...).",
        ),
    ] = None,
    given: Annotated[
        list[str] | None,
        typer.Option("--input", help="An input, as in float32[2,8]; repeatable, in order."),
    ] = None,
    level: Levels = None,
    as_json: AsJson = False,
    rules: Table = False,
    explain: Explain = None,
) -> None:
    """Report what the device's compiler refuses, copies or miscompiles in a torch function."""
    from dslearn.errors import UsageError
    from dslearn.regions.lint import lint, report, targets

    if rules or explain is not None:
        _print(report.rules_table() if explain is None else report.explain(explain))
        return
    if target is None:
        raise UsageError("lint graph: name a MODULE:FUNCTION, or ask for --rules")
    function, inputs = targets.call(target, given or [])
    result = lint(function, *inputs, levels=report.levels(level or []))
    _print([report.as_json(result)] if as_json else report.lines(result))
    raise typer.Exit(1 if result.errors else 0)


@app.command()
def model(
    name: Annotated[
        str, typer.Argument(help="'tiny', which ships, or a checkpoint directory.")
    ] = "tiny",
    level: Levels = None,
    as_json: AsJson = False,
) -> None:
    """Lint the compiled parts of a decode step: one block of each role, and the output."""
    from dslearn.files import need_directory
    from dslearn.regions.lint import report
    from dslearn.regions.lint.model import lint_model

    directory = TINY if name == "tiny" and not Path(name).is_dir() else Path(name)
    need_directory(directory, ships=True)
    reports = lint_model(directory, report.levels(level or []))
    result = report.merged(reports)
    if not as_json:
        for role, one in reports.items():
            print(f"{role}: {len(one.findings)} findings in {one.operations} operations")
    _print([report.as_json(result)] if as_json else report.lines(result))
    raise typer.Exit(1 if result.errors else 0)


def _print(text: Iterable[str]) -> None:
    for line in text:
        print(line)
