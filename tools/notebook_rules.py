"""The rules a committed notebook keeps, checked without running it.

    python tools/notebook_rules.py notebooks/01_fp8_layout.ipynb

`problems(name, notebook)` returns one sentence per broken rule. Running the notebooks and comparing
their outputs is nbval's work (`make test`); these rules are what it cannot see.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Notebook = dict[str, Any]
MAX_KB = 400
SECTIONS = (
    "Set-up",
    "The question",
    "By hand",
    "In the library",
    "On the chip",
    "What it costs",
    "Where it breaks",
    "Golden check",
    "Exercises",
    "Recap",
)
REQUIRED = {"The question", "By hand", "In the library", "Exercises", "Recap"}
ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]{6,}|<[\w.]+ object at")
HOME = re.compile(r"(?:/(?:home|Users|root|mnt|content|tmp|work)/|[A-Z]:\\)[\w.-]+")
INSTALL = re.compile(r"^\s*!|^\s*%\s*(?:pip|conda|uv)\b|\bpip install\b|\bapt-get\b", re.M)
NETWORK = re.compile(
    r"https?://|from_pretrained|urlretrieve|urlopen|hf_hub_download|requests\.(?:get|post)"
)
IGNORING = {"nbval-ignore-output", "nbval-skip"}


def source(cell: dict[str, Any]) -> str:
    """Text of a cell, whichever way it is stored."""
    return "".join(cell.get("source", ""))


def code(notebook: Notebook) -> list[dict[str, Any]]:
    """The code cells."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def prose(notebook: Notebook) -> list[str]:
    """The texts of the markdown cells."""
    return [source(cell) for cell in notebook["cells"] if cell["cell_type"] == "markdown"]


def headings(notebook: Notebook) -> list[str]:
    """Titles of the second level, in order, without numbers in front or a subtitle behind."""
    text = re.sub(r"^```.*?^```", "", "\n".join(prose(notebook)), flags=re.M | re.S)
    titles = re.findall(r"^## +(?:\d+\.?\s*)?(.+)$", text, re.M)
    return [title.partition(":")[0].strip() for title in titles]


def outputs(notebook: Notebook) -> Iterator[dict[str, Any]]:
    """Every output of every code cell."""
    for cell in code(notebook):
        yield from cell.get("outputs", [])


def text_of(output: dict[str, Any]) -> str:
    """What an output shows as text."""
    parts = [output.get("text", ""), output.get("traceback", "")]
    parts += [text for kind, text in output.get("data", {}).items() if kind.startswith("text/")]
    return "\n".join("".join(part) for part in parts)


def opening(name: str, notebook: Notebook) -> Iterator[str]:
    """Title, promise, prerequisites, aims and minutes, then the set-up cell."""
    number = name[:2]
    first = prose(notebook)[0] if prose(notebook) else ""
    if not re.match(rf"# {number}\. \S.*\n\s*\n?\S", first):
        yield f"the first cell must start with '# {number}. Title' and a one-sentence promise"
    head = "\n".join(prose(notebook)[:3])
    for words in ("**Prerequisites**", "**In this notebook you will learn**"):
        if words not in head:
            yield f"{words} must be in the first three text cells"
    if not re.search(r"\b\d+ min read / \d+ min run\b", head):
        yield "the head must say how long it takes, as in '30 min read / 1 min run'"
    cells = code(notebook)
    if cells:
        lines = source(cells[0]).splitlines()
        if len(lines) > 8:
            yield f"the set-up cell has {len(lines)} lines, at most 8"
        if "doctor(" not in source(cells[0]):
            yield "the set-up cell must call dslearn.doctor(...)"


def order(name: str, notebook: Notebook) -> Iterator[str]:
    """Section headings are those of the template, in its order."""
    found = headings(notebook)
    for title in found:
        if title not in SECTIONS:
            yield f"section '{title}' is not in the template: {', '.join(SECTIONS)}"
    known = [SECTIONS.index(title) for title in found if title in SECTIONS]
    if known != sorted(set(known)):
        yield f"sections are out of order or doubled: {found}"
    lacking = sorted(REQUIRED - set(found))
    if lacking:
        yield f"sections missing: {', '.join(lacking)}"


def executed(name: str, notebook: Notebook) -> Iterator[str]:
    """Run from top to bottom, once, with nothing on stderr and no error that was not meant."""
    counts = [cell.get("execution_count") for cell in code(notebook) if source(cell).strip()]
    if counts != list(range(1, len(counts) + 1)):
        yield f"execution counts are {counts[:5]}..., must be 1..{len(counts)}: run all, then save"
    for cell in code(notebook):
        tags = cell["metadata"].get("tags", [])
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr":
                yield f"stderr is committed: {text_of(output)[:60]!r}"
            if output["output_type"] == "error" and "raises-exception" not in tags:
                what = output.get("evalue", "")[:60]
                yield f"an error without the tag raises-exception: {what!r}"


def portable(name: str, notebook: Notebook) -> Iterator[str]:
    """No addresses or machine paths in outputs or sources, no network, no installation."""
    for output in outputs(notebook):
        for what, pattern in (("an address", ADDRESS), ("a path of a machine", HOME)):
            hit = pattern.search(text_of(output))
            if hit:
                yield f"{what} in an output: {hit[0]!r}"
    for cell in code(notebook):
        checks = (("a path of a machine", HOME), ("network", NETWORK), ("an install", INSTALL))
        for what, pattern in checks:
            hit = pattern.search(source(cell))
            if hit:
                yield f"{what} in a code cell: {hit[0]!r}"


def sizes(name: str, notebook: Notebook) -> Iterator[str]:
    """Short cells, narrow lines, few ignored cells (each with its reason), a small file."""
    cells = [cell for cell in code(notebook) if source(cell).strip()]
    lengths = [len(source(cell).splitlines()) for cell in cells]
    for cell, length in zip(cells, lengths, strict=True):
        start = source(cell).splitlines()[0][:40]
        if length > 25:
            yield f"a code cell of {length} lines, at most 25: {start!r}"
        wide = [line for line in source(cell).splitlines() if len(line) > 100]
        if wide:
            yield f"a line of {len(wide[0])} columns, at most 100: {wide[0][:40]!r}"
        tags = IGNORING & set(cell["metadata"].get("tags", []))
        if tags and not cell["metadata"].get("dslearn", {}).get("why"):
            yield f"{sorted(tags)} without a reason in metadata.dslearn.why: {start!r}"
    if lengths and statistics.median(lengths) > 7:
        yield f"the median code cell has {statistics.median(lengths)} lines, at most 7"
    ignored = sum(bool(IGNORING & set(c["metadata"].get("tags", []))) for c in cells)
    if ignored > max(1, 0.05 * len(cells)):
        yield f"{ignored} of {len(cells)} code cells are ignored, at most 5%"
    words = sum(len(text.split()) for text in prose(notebook))
    if not 900 <= words <= 2000:
        yield f"{words} words of text, must be 900 to 2,000"
    if not 35 <= len(notebook["cells"]) <= 60:
        yield f"{len(notebook['cells'])} cells, must be 35 to 60"
    kilobytes = len(json.dumps(notebook, ensure_ascii=False).encode()) / 1024
    if kilobytes > MAX_KB:
        yield f"{kilobytes:.0f} KB, at most {MAX_KB}"


def figures(name: str, notebook: Notebook) -> Iterator[str]:
    """Every picture has a text that stands for it: alt text, or a caption right behind it."""
    for alt, target in re.findall(r"!\[(.*?)\]\((.*?)\)", "\n".join(prose(notebook))):
        if len(alt.split()) < 3:
            yield f"image {target} has alt text {alt!r}: say what it shows"
    cells = notebook["cells"]
    for cell in code(notebook):
        images = [o for o in cell.get("outputs", []) if "image/png" in o.get("data", {})]
        if not images:
            continue
        described = any(
            len(str((o.get("metadata") or {}).get("image/png", {}).get("alt", "")).split()) >= 3
            for o in images
        ) or bool(re.search(r"\balt(_text)?\s*=|\balt:", source(cell)))
        after = cells[cells.index(cell) + 1 :][:1]
        captioned = bool(after) and re.search(r"\*?\*?(Figure|Alt)\b", source(after[0]))
        if not (described or captioned):
            yield f"a figure without alt text or caption: {source(cell).splitlines()[0][:40]!r}"


RULES: tuple[Callable[[str, Notebook], Iterator[str]], ...] = (
    opening,
    order,
    executed,
    portable,
    sizes,
    figures,
)


def problems(name: str, notebook: Notebook) -> list[str]:
    """One sentence per broken rule of the notebook that is saved as `name`."""
    return [sentence for rule in RULES for sentence in rule(name, notebook)]


def main() -> int:
    """Check the notebooks named on the command line."""
    found = 0
    for argument in sys.argv[1:]:
        path = Path(argument)
        for sentence in problems(path.name, json.loads(path.read_text(encoding="utf-8"))):
            print(f"{path.name}: {sentence}")
            found += 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
