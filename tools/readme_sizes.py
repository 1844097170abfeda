"""Write the module map and the sizes of README.md from the files themselves.

    python tools/readme_sizes.py            # rewrite the block between the two markers
    python tools/readme_sizes.py --check    # exit 1 when a number there is off by more than 10%

Lines are counted as they stand, blank ones and comments too, in `*.py` of each part.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
BEGIN, END = "<!-- sizes: python tools/readme_sizes.py -->", "<!-- end of sizes -->"
TOLERANCE = 0.10
PARTS: tuple[tuple[str, str], ...] = (
    ("dslearn/formats", "fp8, ue8m0, fp4, weight tiles, cache records: bytes to numbers and back"),
    ("dslearn/checkpoint", "what a directory must hold; reading, writing, hashing, `inspect`"),
    ("dslearn/model", "the forward pass: attention, compressor, indexer, streams, experts, Engram"),
    ("dslearn/ops", "one torch op per kernel: twin, kernel, and which of them runs"),
    ("dslearn/kernels", "kernels for Trainium2, one file per family"),
    ("dslearn/sim", "the stand-in for `nki`: memories, instructions, rules, lint, cost model"),
    (
        "dslearn/regions",
        "compiled regions: few graphs, lint, cache, timing, workshop, batches",
    ),
    ("dslearn/engine", "`load`, tokenizer, sampler, `generate`, the golden check"),
    ("dslearn/lessons", "what the notebooks import: sources shown, exercises checked"),
    ("dslearn", "with config, backend, doctor and the command line: the whole package"),
    ("tests", "values computed by others, properties, goldens and a NumPy twin"),
    ("tools", "training, goldens, lists of errors and sizes"),
    ("benchmarks", "what is fast, beside what it is compared with"),
)


def count(part: str) -> tuple[int, int]:
    """Number of Python files below `part`, and of lines in them."""
    files = sorted((ROOT / part).rglob("*.py"))
    return len(files), sum(len(f.read_text(encoding="utf-8").splitlines()) for f in files)


def table() -> str:
    """The block between the markers."""
    rows = ["| part | holds | files | lines |", "|---|---|---:|---:|"]
    for part, holds in PARTS:
        files, lines = count(part)
        if files:
            rows.append(f"| `{part}/` | {holds} | {files} | {lines:,} |")
    return "\n".join(rows)


def stated(text: str) -> dict[str, tuple[int, int]]:
    """Files and lines per part as `text`, a README, says."""
    found = re.findall(r"^\| `([\w/]+)/` \|.*\| (\d+) \| ([\d,]+) \|$", text, re.M)
    return {part: (int(files), int(lines.replace(",", ""))) for part, files, lines in found}


def wrong(text: str) -> list[str]:
    """One sentence per part whose numbers are missing or off by more than the tolerance."""
    said, problems = stated(text), []
    for part, _ in PARTS:
        real = count(part)
        have = said.get(part, (0, 0))
        if any(abs(a - b) > max(2, TOLERANCE * b) for a, b in zip(have, real, strict=True)):
            problems.append(f"{part}: README says {have} (files, lines), there are {real}")
    return problems


def main() -> int:
    """Rewrite the block, or with --check compare it."""
    parser = argparse.ArgumentParser(description="module map and sizes of README.md")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    text = README.read_text(encoding="utf-8")
    if parser.parse_args().check:
        problems = wrong(text)
        for problem in problems:
            print(problem, file=sys.stderr)
        return 1 if problems else 0
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    README.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after}", encoding="utf-8")
    print(table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
