"""The `dslearn` command: generate, explain, golden, inspect, doctor, lint, profile, workshop.

Exit codes: 0 fine, 1 a check failed, 2 wrong usage or input (one line on stderr says what), 130
interrupted, 141 the reader of the output went away. Whatever is slow to import is imported inside
the command that needs it, so that `dslearn --help` answers at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

import dslearn
from dslearn import batch_cli, explain_cli, lint_cli, profile_cli, prompt_cli, workshop_cli
from dslearn.errors import DslearnError, UsageError
from dslearn.files import need_directory

app = typer.Typer(
    help="Understand, and run, the decode path of a DeepSeek-V4.1 model.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(lint_cli.app, name="lint")
app.command()(profile_cli.profile)
app.add_typer(workshop_cli.app, name="workshop")
app.command()(explain_cli.explain)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(f"dslearn {dslearn.__version__}")
        raise typer.Exit


@app.command()
def doctor(
    line: Annotated[bool, typer.Option("--line", help="One line instead of a table.")] = False,
) -> None:
    """Check this installation: versions, backend and why, placeholder packages."""
    from dslearn.doctor import doctor as examine

    raise typer.Exit(examine(line=line).exit_code)


@app.command()
def inspect(
    directory: Annotated[str, typer.Argument(help="'tiny' or a checkpoint directory.")],
    tensor: Annotated[str | None, typer.Option(help="Take a tile of this tensor apart.")] = None,
    tile: Annotated[str | None, typer.Option(help="Tile row and column, as in 0,3.")] = None,
) -> None:
    """Print a checkpoint's tensors, formats and bytes, or one tile of one tensor."""
    from dslearn.checkpoint.report import inspect as report

    for line in report(_directory(directory), tensor=tensor, tile=tile):
        print(line)


# One parameter per option is how typer reads a command line.
@app.command()
def generate(  # noqa: PLR0913
    prompt: prompt_cli.Prompt = None,
    model: prompt_cli.Model = "tiny",
    max_tokens: Annotated[int, typer.Option(help="Stop after this many new tokens.")] = 64,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Sample from this much probability.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Makes sampling repeatable.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="Stop before this text; repeatable.")
    ] = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="Then list what the last step of PROMPT calls.")
    ] = False,
    max_num_seqs: Annotated[
        int | None, typer.Option(help="Each line is a prompt: so many at once, as graphs.")
    ] = None,
    max_len: Annotated[
        int, typer.Option(help="With --max-num-seqs: tokens of a prompt and what follows.")
    ] = 512,
    plan: Annotated[
        bool, typer.Option("--plan", help="With --max-num-seqs: print what would be compiled.")
    ] = False,
) -> None:
    """Continue PROMPT and print the text as it comes (without the prompt)."""
    if plan and max_num_seqs is None:
        raise UsageError("--plan needs --max-num-seqs: --plan --max-num-seqs 8, for instance")
    if trace and max_num_seqs is not None:
        raise UsageError("--trace is of one prompt: leave --trace or --max-num-seqs out")
    if plan and max_num_seqs is not None:
        batch_cli.show_plan(model, max_num_seqs, max_len)
        return
    if max_num_seqs is not None:
        from dslearn.engine.sampler import Sampling

        sampling = Sampling(temperature, top_p, seed)
        sizes = max_num_seqs, max_len, max_tokens
        batch_cli.generate(prompt_cli.read(prompt), model, *sizes, sampling, stop or [])
        return
    text = prompt_cli.read(prompt)
    last = ""
    lm = dslearn.load(model)
    for piece in lm.generate(
        text,
        max_new_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        stop=stop or [],
    ):
        sys.stdout.write(piece)
        sys.stdout.flush()
        last = piece or last
    if not last.endswith("\n"):
        sys.stdout.write("\n")
    if trace:
        from dslearn.engine import trace as tracing

        ids = lm.encode(text)
        print("\n" + tracing.show(tracing.step(lm, ids), len(ids) - 1))


@app.command()
def golden(
    show: Annotated[bool, typer.Option("--show", help="Print the text as it comes.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Compare only (the default).")] = False,
) -> None:
    """Generate the golden prompts with tiny and compare with the committed tokens."""
    from dslearn.engine.golden import run

    raise typer.Exit(0 if run(show=show and not check) else 1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line `arguments` (default: this process's) and return the exit code."""
    _utf8(sys.stdout)
    try:
        code = _invoke(sys.argv[1:] if arguments is None else list(arguments))
        sys.stdout.flush()
        return code
    except DslearnError as error:
        return _complain(str(error))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The interpreter flushes stdout once more at exit: give it something that accepts.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _invoke(arguments: list[str]) -> int:
    """Parse and run; turn typer's own multi-line complaints into one line."""
    command = typer.main.get_command(app)
    try:
        with command.make_context("dslearn", arguments) as context:
            command.invoke(context)
    except typer.Exit as leave:
        return leave.exit_code
    except typer.Abort:
        return 130
    except Exception as error:
        # Every usage error of typer (and of click, under older releases) formats itself.
        message = getattr(error, "format_message", None)
        if message is None or isinstance(error, DslearnError):
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            print(message(), file=sys.stderr)
            return 2
        return _complain(message())
    return 0


def _complain(message: str) -> int:
    print(f"dslearn: {' '.join(message.split())}", file=sys.stderr)
    return 2


def _directory(name: str) -> Path:
    """`tiny` is the checkpoint in the package, unless a directory of that name lies here."""
    ships = Path(dslearn.__file__).parent / "data" / name
    directory = ships if name == "tiny" and not Path(name).is_dir() else Path(name)
    need_directory(directory, ships=True)
    return directory


def _utf8(stream: Any) -> None:
    """Write UTF-8 whatever the locale says; streams of test harnesses cannot be set."""
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(encoding="utf-8")
