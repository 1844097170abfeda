"""The training text of `tiny`: the standard library's own source, split, pinned and verified.

Every CPython carries it, so nothing is downloaded. The exact files (CPython 3.11 with its tests)
are pinned by size and hash in `tools/corpus.txt`; another CPython is refused with what differs.

    python tools/corpus.py            # verify this interpreter's library, print sizes per split
    python tools/corpus.py --write    # write the list anew (a maintainer's step)

Not part of the text: `site-packages`, caches, empty files, sources that are not plain UTF-8, what
depends on the machine that built this Python, and tables that are data and would only teach byte
noise (`EXCLUDED`). Held out: every file whose SHA-1 of the relative
POSIX path, as an integer, is 0 modulo 20.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import io
import sys
import sysconfig
import tokenize
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from dslearn.errors import DslearnError, UsageError

LIST = Path(__file__).with_name("corpus.txt")
HELD_OUT_MODULO = 20
HASH_DIGITS = 16
SPLITS = ("train", "held-out")
EXCLUDED = (
    "site-packages/*",
    "*__pycache__/*",
    "config-*/*",  # holds paths of the machine that built this Python
    "_sysconfigdata_*.py",  # the same
    "lib2to3/tests/data/*",  # deliberately broken or odd encodings
    "pydoc_data/topics.py",  # 0.7 MB: one dict of documentation strings
    "encodings/cp*.py",  # code pages: here and below, tables of 256 entries
    "encodings/iso8859_*.py",
    "encodings/koi8_*.py",
    "encodings/mac_*.py",
    "encodings/kz1048.py",
    "encodings/palmos.py",
    "encodings/hp_roman8.py",
    "encodings/ptcp154.py",
    "encodings/tis_620.py",
)


@dataclass(frozen=True)
class Entry:
    """One file of the text: relative POSIX path, size in bytes, SHA-256 prefix, split."""

    path: str
    size: int
    sha256: str
    split: str

    @classmethod
    def of(cls, path: str, data: bytes) -> Entry:
        """Describe `data`, the content of the file at relative POSIX `path`."""
        return cls(path, len(data), hashlib.sha256(data).hexdigest()[:HASH_DIGITS], split_of(path))


def stdlib() -> Path:
    """Directory of the running interpreter's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def split_of(path: str) -> str:
    """`held-out` when SHA-1 of the relative POSIX path is 0 modulo 20, else `train`."""
    number = int(hashlib.sha1(path.encode()).hexdigest(), 16)
    return "held-out" if number % HELD_OUT_MODULO == 0 else "train"


def is_utf8_source(data: bytes) -> bool:
    """Whether Python would read `data` as UTF-8 source, and it is valid UTF-8, not empty."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        data.decode("utf-8")
    except (SyntaxError, UnicodeDecodeError):
        return False
    return encoding == "utf-8" and len(data) > 0 and b"\0" not in data


def files(root: Path) -> list[Entry]:
    """Files of the text found below `root`, sorted by path (code point order)."""
    paths = sorted(p.relative_to(root).as_posix() for p in root.rglob("*.py"))
    kept = (p for p in paths if not any(fnmatch.fnmatchcase(p, glob) for glob in EXCLUDED))
    found = ((p, (root / p).read_bytes()) for p in kept)
    return [Entry.of(p, data) for p, data in found if is_utf8_source(data)]


def load_list(path: Path = LIST) -> list[Entry]:
    """Read the committed list: one `sha256 size split path` line per file, `#` comments."""
    lines = [line for line in path.read_text().splitlines() if line and line[0] != "#"]
    rows = (line.split(" ", 3) for line in lines)
    return [Entry(name, int(size), digest, split) for digest, size, split, name in rows]


def save_list(entries: Iterable[Entry], path: Path = LIST, source: str = "") -> None:
    """Write `entries` in the form that `load_list` reads."""
    head = f"# {source}\n# sha256[:{HASH_DIGITS}] bytes split path\n"
    rows = (f"{e.sha256} {e.size} {e.split} {e.path}\n" for e in entries)
    path.write_text(head + "".join(rows))


def verify(root: Path, expected: list[Entry]) -> None:
    """Check that every listed file is below `root` with the listed bytes.

    Raises:
        UsageError: files are missing or differ; names up to three of each, and says what to do.
    """
    missing, changed = [], []
    for entry in expected:
        file = root / entry.path
        if not file.is_file():
            missing.append(entry.path)
        elif Entry.of(entry.path, file.read_bytes()) != entry:
            changed.append(entry.path)
    if missing or changed:
        raise UsageError(
            f"{root} is not the library that corpus.txt lists ({len(expected)} files): "
            f"{_some('missing', missing)}, {_some('changed', changed)}. Run with the CPython named "
            "on the first line of tools/corpus.txt, tests included (distribution packages often "
            "leave them out; pyenv and python.org builds have them), or pass its library as root."
        )


def read_split(
    split: str, root: Path | None = None, listing: Path = LIST
) -> list[tuple[str, bytes]]:
    """Verified content of one split, in list order.

    Args:
        split: `train` or `held-out`.
        root: library directory; default is the running interpreter's.
        listing: the list to verify against.

    Returns:
        `(relative POSIX path, bytes)` per file.

    Raises:
        UsageError: unknown split, or `root` does not hold the listed bytes.
    """
    if split not in SPLITS:
        raise UsageError(f"split {split!r}: allowed are {' and '.join(SPLITS)}; choose one")
    root = root or stdlib()
    entries = load_list(listing)
    verify(root, entries)
    return [(e.path, (root / e.path).read_bytes()) for e in entries if e.split == split]


def _some(what: str, names: list[str]) -> str:
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return f"{len(names)} {what}" + (f" ({shown})" if names else "")


def main() -> int:
    """Verify or write the list; print files and bytes per split."""
    parser = argparse.ArgumentParser(description="verify the training text of tiny")
    parser.add_argument("--root", type=Path, default=stdlib(), help="library directory")
    parser.add_argument("--write", action="store_true", help="write tools/corpus.txt anew")
    args = parser.parse_args()
    if args.write:
        save_list(files(args.root), source=f"CPython {sys.version.split()[0]}, library with tests")
    for split in SPLITS:
        sizes = [len(data) for _, data in read_split(split, args.root)]
        print(f"{split:9s} {len(sizes):5d} files {sum(sizes):11,d} bytes")
    return 0


def exit_code(main: Callable[[], int]) -> int:
    """Run a tool's `main`; what it refuses is printed as one line and gives 2."""
    try:
        return main()
    except DslearnError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(exit_code(main))
