"""The arguments that commands on a text share: PROMPT and --model."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from dslearn.errors import UsageError

Prompt = Annotated[
    str | None,
    typer.Argument(help="The text; '-', or nothing with a pipe, reads stdin."),
]
Model = Annotated[str, typer.Option(help="'tiny', which ships, or a checkpoint directory.")]


def read(argument: str | None) -> str:
    """The prompt: the argument, or all of stdin, kept byte for byte.

    Raises:
        UsageError: nothing to read, nothing in it, or bytes that are not UTF-8.
    """
    if argument is not None and argument != "-":
        text = argument
        if any("\ud800" <= char <= "\udfff" for char in text):
            raise UsageError("the prompt is not UTF-8: set a UTF-8 locale, or pipe it into stdin")
    elif argument is None and sys.stdin.isatty():
        raise UsageError("no prompt: give one as an argument, or pipe text into stdin")
    else:
        try:
            text = sys.stdin.buffer.read().decode("utf-8")
        except UnicodeDecodeError as error:
            raise UsageError(f"stdin is not UTF-8 ({error.reason}): convert it first") from error
    if not text:
        raise UsageError("the prompt is empty: give at least one character")
    return text
