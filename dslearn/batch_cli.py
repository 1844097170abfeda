"""`dslearn generate --max-num-seqs N`: many prompts at once, by graphs of a few batch sizes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from dslearn.errors import UsageError


def show_plan(model: str, max_num_seqs: int, max_len: int) -> str:
    """Print what would be compiled; -> the graph mode, regions unless the environment says whole.

    Of `model` only config.json is read.
    """
    from dslearn.config import Config
    from dslearn.engine.lm import model_directory
    from dslearn.regions import settings
    from dslearn.regions.compile_plan import compile_plan

    mode = "whole" if settings.mode() == "whole" else "regions"
    cfg = Config.from_file(model_directory(model) / "config.json")
    plan = compile_plan(cfg, max_num_seqs, max_len, mode)  # refuses sizes before anything is said
    print(f"mode {mode}, {max_num_seqs} lanes of {max_len} tokens and a scratch lane")
    print(plan, flush=True)
    return mode


def generate(  # noqa: PLR0913 - the options of the command
    text: str,
    model: str,
    max_num_seqs: int,
    max_len: int,
    max_tokens: int,
    sampling: Any,
    stop: Sequence[str],
) -> None:
    """Continue each line of `text` and print the continuations in the order of the lines.

    Raises:
        UsageError: no prompts, or one that does not fit.
    """
    from dslearn.engine import load
    from dslearn.engine.batch import together
    from dslearn.engine.text import StopFilter
    from dslearn.regions import warm
    from dslearn.regions.graph_runner import GraphRunner

    prompts = [line for line in text.splitlines() if line]
    if not prompts:
        raise UsageError("no prompts: give one in each line")
    mode = show_plan(model, max_num_seqs, max_len)
    lm = load(model)
    runner = GraphRunner(lm.model, max_num_seqs, max_len, mode)
    _capture(runner)
    warm()
    ended: dict[int, str] = {}
    shown = 0
    ids = [lm.encode(prompt) for prompt in prompts]
    for number, tokens in together(lm, runner, ids, max_tokens, sampling):
        ended[number] = "".join(lm.pieces(iter(tokens), StopFilter(stop)))
        while shown in ended:
            print(f"--- {shown + 1}: {prompts[shown]}\n{ended.pop(shown)}", flush=True)
            shown += 1


def _capture(runner: Any) -> None:
    """Capture, with a bar on stderr."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("compiling", total=len(runner.buckets) + 1)

        def done(what: str) -> None:
            progress.update(bar, advance=1, description=f"compiled {what}")

        runner.capture(done)
    print(f"compiled {len(runner.buckets)} batch sizes", file=sys.stderr)
