"""`dslearn explain`: where one token came from."""

from __future__ import annotations

from typing import Annotated

import typer

from dslearn import prompt_cli


def explain(
    prompt: prompt_cli.Prompt = None,
    model: prompt_cli.Model = "tiny",
    step: Annotated[int, typer.Option(help="Which new token; 0 is the first.")] = 0,
    out: Annotated[str | None, typer.Option(help="Draw it too: FILE.png or FILE.svg.")] = None,
) -> None:
    """Show what a new token after PROMPT attended to, its experts, its Engram rows."""
    from dslearn.engine import explain_picture, explain_table, lm
    from dslearn.engine.explain import explain as explained

    text = prompt_cli.read(prompt)
    if out is not None:
        explain_picture.check(out)
    loaded = lm.load(model)
    explanation = explained(loaded, loaded.encode(text), step)
    explain_table.show(explanation)
    if out is not None:
        explain_picture.save(explanation, out)
