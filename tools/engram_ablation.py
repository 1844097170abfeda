"""What Engram is worth to `tiny`: bits per byte on held-out files with its tables changed.

    python tools/engram_ablation.py --files 4            # some minutes on one core
    python tools/engram_ablation.py                      # all 85 files

A table of zeros gives keys and values of zero, so the layer adds nothing to the streams: it is off.
A table moved by one row gives every n-gram the row of another: how much of the gain is that the
rows are the right ones. Predictions and windows are those of tools/bits_per_byte.py.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

import corpus
import tokens
from bits_per_byte import held_out
from dslearn.engine.lm import model_directory
from dslearn.errors import UsageError
from dslearn.model import Model
from dslearn.model.loading import load_model
from training.evaluate import nats

TABLE = ".engram.embed.weight"
Change = Callable[[Tensor], Tensor]


def tables(model: Model) -> dict[str, Tensor]:
    """The Engram tables as stored, codes or numbers, by the name of their layer."""
    stored = (*model.named_parameters(), *model.named_buffers())
    return {name.removesuffix(TABLE): t.detach() for name, t in stored if name.endswith(TABLE)}


def cases(layers: list[str]) -> Iterator[tuple[str, list[str], Change]]:
    """What is measured: name, layers whose table is changed, and how."""
    yield "as shipped", [], torch.clone
    if len(layers) > 1:
        for layer in layers:
            yield f"table of {layer} zeroed", [layer], torch.zeros_like
    yield "all tables zeroed", layers, torch.zeros_like
    yield "all tables moved by one row", layers, lambda table: table.roll(1, 0)


def measure(model: Model, files: list[Tensor], context: int) -> Iterator[tuple[str, float]]:
    """Name and nats of each case; the tables are put back."""
    whole = tables(model)
    if not whole:
        raise UsageError("this model has no Engram layer: nothing to take away")
    for name, layers, change in cases(list(whole)):
        kept = {layer: whole[layer].clone() for layer in layers}
        try:
            for layer in layers:
                whole[layer].copy_(change(kept[layer]))
            yield name, nats(model, files, context)
        finally:
            for layer in layers:
                whole[layer].copy_(kept[layer])


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description="bits per byte of tiny without its Engram tables")
    parser.add_argument("--model", default="tiny", help="checkpoint directory (default: tiny)")
    parser.add_argument("--context", type=int, default=512, help="tokens a window holds")
    parser.add_argument("--files", type=int, help="only so many files (default: all)")
    parser.add_argument("--cache", type=Path, help="token cache (default: encode again)")
    parser.add_argument("--root", type=Path, help="library directory (default: this Python's)")
    args = parser.parse_args()
    if args.context < 2:
        raise UsageError(f"--context {args.context}: windows overlap by half, so at least 2")
    with tempfile.TemporaryDirectory() as scratch:
        files, size = held_out(args.cache or Path(scratch), args.root, args.files)
    print(
        f"{len(files)} held-out files, {size:,d} bytes\n\nbits per byte  more  tables", flush=True
    )
    first = 0.0
    for name, found in measure(load_model(model_directory(args.model)), files, args.context):
        bits = tokens.bits_per_byte(found, size)
        first = first or bits
        print(f"{bits:13.4f}  {bits / first - 1:4.0%}  {name}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(corpus.exit_code(main))
