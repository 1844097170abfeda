"""Token ids of both splits, encoded once and cached as `.npy`.

    python tools/tokens.py CACHE_DIR    # encode what is not cached yet, print the sizes

F files, N tokens. A file becomes begin + its tokens + end, so a model that starts at each begin
predicts every byte and the end. Bits per byte = nats of those predictions / (ln 2 * bytes).
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

import corpus
from dslearn.errors import UsageError

TOKENIZER = Path(__file__).parents[1] / "dslearn/data/tiny/tokenizer.json"
BOS, EOS = 0, 1


@dataclass(frozen=True)
class Tokens:
    """One split: `ids` [N] uint16 (memory-mapped), `starts` [F+1] and `sizes` [F] in bytes."""

    ids: NDArray[np.uint16]
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.sizes)

    def file(self, index: int) -> NDArray[np.uint16]:
        """Ids of file `index`: begin, tokens, end."""
        return self.ids[self.starts[index] : self.starts[index + 1]]

    @property
    def bytes(self) -> int:
        """UTF-8 bytes of all files."""
        return int(self.sizes.sum())


def bits_per_byte(nats: float, size: int) -> float:
    """Summed negative log likelihood `nats` of text of `size` bytes, in bits per byte."""
    return nats / math.log(2) / size


def encode(texts: list[bytes], tokenizer: Tokenizer) -> Tokens:
    """Encode UTF-8 `texts`, each as begin + tokens + end.

    Raises:
        UsageError: the vocabulary does not fit 16 bits.
    """
    if tokenizer.get_vocab_size() > 1 << 16:
        raise UsageError(
            f"{tokenizer.get_vocab_size()} ids do not fit uint16: use at most 65536 ids"
        )
    encodings = tokenizer.encode_batch([t.decode() for t in texts], add_special_tokens=False)
    parts = [np.array([BOS, *e.ids, EOS], np.uint16) for e in encodings]
    starts = np.cumsum([0, *(len(part) for part in parts)], dtype=np.int64)
    ids = np.concatenate(parts) if parts else np.zeros(0, np.uint16)
    return Tokens(ids, starts, np.array([len(t) for t in texts], np.int64))


def load(
    split: str,
    cache: Path,
    tokenizer: Path = TOKENIZER,
    root: Path | None = None,
    listing: Path = corpus.LIST,
) -> Tokens:
    """Tokens of `split`, from `cache` or encoded into it now.

    The cached files are named after the tokenizer and the list, so a change of either encodes anew.

    Raises:
        UsageError: see `corpus.read_split`; only when something must be encoded.
    """
    key = hashlib.sha256(tokenizer.read_bytes() + listing.read_bytes()).hexdigest()[:12]
    ids_file, files_file = (cache / f"{split}-{key}.{part}.npy" for part in ("ids", "files"))
    if not (ids_file.is_file() and files_file.is_file()):
        texts = [data for _, data in corpus.read_split(split, root, listing)]
        made = encode(texts, Tokenizer.from_file(str(tokenizer)))
        cache.mkdir(parents=True, exist_ok=True)
        _save(ids_file, made.ids)
        _save(files_file, np.stack([np.diff(made.starts), made.sizes]))
    lengths, sizes = np.load(files_file)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return Tokens(np.load(ids_file, mmap_mode="r"), starts, sizes)


def _save(path: Path, array: NDArray[np.generic]) -> None:
    scratch = path.with_suffix(f".{os.getpid()}.tmp.npy")  # a killed run leaves no half file
    np.save(scratch, array)
    scratch.replace(path)


def main() -> int:
    """Encode both splits into a cache directory; print files, bytes, tokens, bytes per token."""
    parser = argparse.ArgumentParser(description="encode the training text of tiny")
    parser.add_argument("cache", type=Path, help="directory for the .npy files")
    parser.add_argument("--root", type=Path, default=corpus.stdlib(), help="library directory")
    args = parser.parse_args()
    for split in corpus.SPLITS:
        tokens = load(split, args.cache, root=args.root)
        inner = len(tokens.ids) - 2 * len(tokens)
        print(
            f"{split:9s} {len(tokens):5d} files {tokens.bytes:11,d} bytes {len(tokens.ids):10,d} "
            f"tokens with begin and end, {tokens.bytes / inner:.4f} bytes per token without"
        )
    return 0


if __name__ == "__main__":
    sys.exit(corpus.exit_code(main))
