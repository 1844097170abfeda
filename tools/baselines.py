"""What `tiny` must beat: bits per byte of gzip -9 and of a byte n-gram model, on the same split.

    python tools/baselines.py                   # order 5, 15 s, 0.7 GB
    python tools/baselines.py --without-tests   # the library without its tests, same split rule

gzip sees no training text: each held-out file alone (18 bytes of frame each, no name or time), and
all of them concatenated in list order. The n-gram model is trained on the training split; order 5
means five bytes of context; it predicts every byte of a file and its end, as `tiny` does.

    P_n(x | h) = (max(c(hx) - D(c), 0) + B(h) P_{n-1}(x | h without its first byte)) / Z(h)

* `kn`, modified Kneser-Ney (Chen & Goodman 1998): three discounts per order from the counts of
  counts, B what they take away, Z = c(h); below the top order c counts distinct bytes in front.
* `wb`, Witten-Bell: no discount, B = number of distinct bytes after h, Z = c(h) + B.

Order 0 mixes with the uniform distribution over 257 symbols (256 bytes and the end of a file).

N symbols of training text, Q of held-out text. A gram of n + 1 symbols is one integer, 9 bits each.
"""

from __future__ import annotations

import argparse
import fnmatch
import gzip
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import corpus
from dslearn.errors import UsageError

Keys = NDArray[np.uint64]
Counts = NDArray[np.int64]
SYMBOLS = 257
END = 256
BITS = np.uint64(9)  # 256 bytes and the end: 7 symbols fit 64 bits
MAX_ORDER = 6
SMOOTHINGS = ("kn", "wb")
TESTS = (
    "test/*",
    "*/test/*",
    "*/tests/*",
    "idlelib/idle_test/*",
)


@dataclass(frozen=True)
class Level:
    """One order: sorted distinct grams [G], their counts [G], sorted contexts [H], Z and B [H]."""

    grams: Keys
    discounted: NDArray[np.float64]
    contexts: Keys
    total: NDArray[np.float64]
    backoff: NDArray[np.float64]


def gzip_bits(texts: list[bytes]) -> tuple[float, float]:
    """Bits per byte of gzip -9: every text alone, and all of them concatenated."""
    size = sum(map(len, texts))
    alone = sum(len(gzip.compress(text, 9, mtime=0)) for text in texts)
    together = len(gzip.compress(b"".join(texts), 9, mtime=0))
    return 8 * alone / size, 8 * together / size


def symbols(texts: list[bytes], order: int) -> tuple[NDArray[np.uint16], NDArray[np.bool_]]:
    """Texts as one array, and which symbols are predicted.

    Each text is preceded by `order` end symbols, its context at the start, and followed by one.
    """
    lead = np.full(order, END, np.uint16)
    parts, real = [], []
    for text in texts:
        body = np.append(np.frombuffer(text, np.uint8).astype(np.uint16), np.uint16(END))
        parts += [lead, body]
        real += [np.zeros(order, bool), np.ones(len(body), bool)]
    return np.concatenate(parts), np.concatenate(real)


def grams(stream: NDArray[np.uint16], real: NDArray[np.bool_], order: int) -> Keys:
    """The gram of `order` symbols of context and the symbol, at every predicted place: [Q]."""
    key = stream.astype(np.uint64)
    for back in range(1, order + 1):
        key[back:] |= stream[:-back].astype(np.uint64) << np.uint64(back * int(BITS))
    return key[real]


def suffix(keys: Keys, order: int) -> Keys:
    """Keep the last `order` symbols of context and the symbol."""
    return keys & np.uint64((1 << int(BITS) * (order + 1)) - 1)


def discounts(counts: Counts) -> NDArray[np.float64]:
    """Modified Kneser-Ney discounts for counts 0, 1, 2 and 3 or more: [4].

    Falls back to 0.5, 1, 1.5 where a small text gives no positive estimate.
    """
    n1, n2, n3, n4 = (float(np.count_nonzero(counts == n)) for n in (1, 2, 3, 4))
    if n1 and n2 and n3 and n4:
        y = n1 / (n1 + 2 * n2)
        found = np.array([0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3])
        if (found[1:] > 0).all():  # else nothing would be left for what was not seen
            return found
    return np.array([0, 0.5, 1, 1.5])


def level(keys: Keys, counts: Counts, smoothing: str) -> Level:
    """Build one order from its sorted distinct grams and their counts."""
    contexts, first, distinct = np.unique(keys >> BITS, return_index=True, return_counts=True)
    total = np.add.reduceat(counts, first).astype(np.float64)
    if smoothing == "wb":
        backoff = distinct.astype(np.float64)
        return Level(keys, counts.astype(np.float64), contexts, total + backoff, backoff)
    taken = discounts(counts)[np.minimum(counts, 3)]
    return Level(keys, counts - taken, contexts, total, np.add.reduceat(taken, first))


def train(keys: Keys, order: int, smoothing: str) -> list[Level]:
    """Levels `order` .. 0 from the grams of `order` at every place of the training text.

    Raises:
        UsageError: unknown smoothing, or an order whose grams do not fit 64 bits.
    """
    if smoothing not in SMOOTHINGS or not 0 <= order <= MAX_ORDER:
        raise UsageError(
            f"smoothing {smoothing!r}, order {order}: allowed are {' and '.join(SMOOTHINGS)}, "
            f"0 to {MAX_ORDER}; choose among them"
        )
    distinct, counts = np.unique(keys, return_counts=True)
    levels = [level(distinct, counts, smoothing)]
    for n in range(order - 1, -1, -1):
        shorter = suffix(distinct, n)
        if smoothing == "kn":
            distinct, counts = np.unique(shorter, return_counts=True)
        else:
            distinct, inverse = np.unique(shorter, return_inverse=True)
            counts = np.bincount(inverse, weights=counts).astype(np.int64)
        levels.append(level(distinct, counts, smoothing))
    return levels


def probability(levels: list[Level], keys: Keys) -> NDArray[np.float64]:
    """Probability of the last symbol of each gram given the others: [Q]."""
    p = np.full(len(keys), 1 / SYMBOLS)
    for order, now in enumerate(reversed(levels)):
        gram = suffix(keys, order)
        found, at = _find(now.grams, gram)
        seen, where = _find(now.contexts, gram >> BITS)
        own = np.where(found, now.discounted[at], 0.0)
        p = np.where(seen, (own + now.backoff[where] * p) / now.total[where], p)
    return p


def ngram_bits(
    train_texts: list[bytes], held_out: list[bytes], order: int, smoothing: str
) -> float:
    """Bits per byte of `held_out`, ends of files included in the bits and not in the bytes."""
    levels = train(grams(*symbols(train_texts, order), order), order, smoothing)
    p = probability(levels, grams(*symbols(held_out, order), order))
    return float(-np.log2(p).sum()) / sum(map(len, held_out))


def _find(table: Keys, keys: Keys) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    at = np.minimum(np.searchsorted(table, keys), len(table) - 1)
    return table[at] == keys, at


def _texts(split: str, root: Path, with_tests: bool) -> list[bytes]:
    pairs = corpus.read_split(split, root)
    keep = (
        with_tests or not any(fnmatch.fnmatchcase(path, glob) for glob in TESTS)
        for path, _ in pairs
    )
    return [data for (_, data), kept in zip(pairs, keep, strict=True) if kept]


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description="bits per byte of gzip and of a byte n-gram model")
    parser.add_argument("--root", type=Path, default=corpus.stdlib(), help="library directory")
    parser.add_argument("--order", type=int, nargs="+", default=[5], help="bytes of context, 0-6")
    parser.add_argument("--without-tests", action="store_true", help="leave the tests out")
    args = parser.parse_args()
    known, held_out = (_texts(s, args.root, not args.without_tests) for s in corpus.SPLITS)
    sizes = [f"{len(t)} files, {sum(map(len, t)):,d} bytes" for t in (known, held_out)]
    print(f"train {sizes[0]}; held-out {sizes[1]}\n\nbits per byte  model")
    alone, together = gzip_bits(held_out)
    print(f"{alone:13.4f}  gzip -9, each held-out file alone")
    print(f"{together:13.4f}  gzip -9, held-out files concatenated", flush=True)
    for order in args.order:
        for smoothing, name in zip(SMOOTHINGS, ("Kneser-Ney", "Witten-Bell"), strict=True):
            bits = ngram_bits(known, held_out, order, smoothing)
            print(f"{bits:13.4f}  order-{order} byte n-gram, {name}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(corpus.exit_code(main))
