"""Bits per byte of `tiny` on the held-out files, beside what it must beat, in one run.

    python tools/bits_per_byte.py                               # as shipped, context 512
    python tools/bits_per_byte.py --context 512 1024 2048 4096
    python tools/bits_per_byte.py --model OUT/best --plain OUT/plain    # what quantisation costs

Every byte of a file and its end are predicted. A prediction looks back over at least half of the
context: windows overlap by half. gzip and the n-gram model are those of tools/baselines.py.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

import baselines
import corpus
import tokens
from dslearn.engine.lm import model_directory
from dslearn.errors import UsageError
from dslearn.model.loading import load_model
from dslearn.numerics import Numerics
from training.evaluate import nats

SHIPPED = Numerics()
PLAIN = Numerics(activations=False, caches=False)
ORDER = 5
GROUP_TOKENS = 16384  # tokens between two updates of the progress bar


@dataclass(frozen=True)
class Row:
    """One line of the table: name, bits per byte, and the nats they come from (0: none)."""

    name: str
    bits: float
    nats: float = 0.0


def held_out(cache: Path, root: Path | None, count: int | None) -> tuple[list[Tensor], int]:
    """Token ids of the first `count` held-out files (None: all), and their bytes."""
    split = tokens.load("held-out", cache, root=root)
    files = range(len(split) if count is None else min(count, len(split)))
    ids = [torch.from_numpy(split.file(i).astype("int64")) for i in files]
    return ids, int(split.sizes[: len(files)].sum())


def measure(
    name: str, directory: Path, numerics: Numerics, files: list[Tensor], size: int, context: int
) -> Row:
    """One pass over `files` (of `size` bytes together) with a progress bar."""
    model = load_model(directory, numerics)
    total, group, held = 0.0, [], 0
    with tqdm(total=sum(map(len, files)), desc=name, unit="tok", leave=False) as bar:
        for number, ids in enumerate(files):
            group.append(ids)
            held += len(ids)
            if held >= GROUP_TOKENS or number + 1 == len(files):
                total += nats(model, group, context)
                bar.update(held)
                group, held = [], 0
    return Row(name, tokens.bits_per_byte(total, size), total)


def baseline_rows(root: Path | None, count: int | None) -> list[Row]:
    """gzip and the n-gram model on the same files."""
    known, texts = ([data for _, data in corpus.read_split(s, root)] for s in corpus.SPLITS)
    texts = texts[:count]
    alone, together = baselines.gzip_bits(texts)
    rows = [
        Row("gzip -9, each file alone", alone),
        Row("gzip -9, files concatenated", together),
    ]
    names = ("modified Kneser-Ney", "Witten-Bell")
    for smoothing, name in zip(baselines.SMOOTHINGS, names, strict=True):
        bits = baselines.ngram_bits(known, texts, ORDER, smoothing)
        rows.append(Row(f"order-{ORDER} byte n-gram, {name}", bits))
    return rows


def report(show: Callable[[str], None], args: argparse.Namespace) -> None:
    """Measure what `args` ask for and show it line by line."""
    if min(args.context) < 2:
        raise UsageError(f"--context {min(args.context)}: windows overlap by half, so at least 2")
    directory = model_directory(args.model)
    with tempfile.TemporaryDirectory() as scratch:
        files, size = held_out(args.cache or Path(scratch), args.root, args.files)
        show(f"{len(files)} held-out files, {size:,d} bytes\n\nbits per byte  model")

        def line(row: Row) -> Row:
            show(f"{row.bits:13.4f}  {row.name}")
            return row

        first = args.context[0]
        shipped = [
            line(measure(f"{args.model}, context {n}", directory, SHIPPED, files, size, n))
            for n in args.context
        ]
        line(measure("activations and caches not quantised", directory, PLAIN, files, size, first))
        full = None
        if args.plain:
            full = line(measure("full-precision weights", args.plain, PLAIN, files, size, first))
    better = None
    if not args.no_baselines:
        rows = [line(row) for row in baseline_rows(args.root, args.files)]
        better = min(row.bits for row in rows)
    if full:
        show(f"\nquantised over full precision, nats: {shipped[0].nats / full.nats:.4f}")
    if better:
        show(
            f"\nbest context over the better baseline: {min(r.bits for r in shipped) / better:.4f}"
        )


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description="bits per byte of tiny on held-out files")
    parser.add_argument("--model", default="tiny", help="checkpoint directory (default: tiny)")
    parser.add_argument("--plain", type=Path, help="the trainer's full-precision export")
    parser.add_argument(
        "--context", type=int, nargs="+", default=[512], help="tokens a window holds, at least 2"
    )
    parser.add_argument("--files", type=int, help="only so many files (default: all)")
    parser.add_argument("--no-baselines", action="store_true", help="skip gzip and the n-gram")
    parser.add_argument("--cache", type=Path, help="token cache (default: encode again)")
    parser.add_argument("--root", type=Path, help="library directory (default: this Python's)")
    report(lambda text: print(text, flush=True), parser.parse_args())
    return 0


if __name__ == "__main__":
    sys.exit(corpus.exit_code(main))
