"""Run every example of docs/kernels.md and write the messages of the refused ones.

    python tools/kernel_examples.py            # rewrite the message below each refused example
    python tools/kernel_examples.py --check    # exit 1 when something there is not true

A section named after a rule holds a block ```python refused```, the message as ```text```, and the
legal twin ```python legal```. A block is the body of a kernel that is called on x, fp32 [256, 512]
(0, 1, 2, ...), on one core, or on two if its first line says so; a block with `@nki.jit` is a
script. Blocks ```python run``` are scripts that share their names, in the order of the page.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import dslearn.kernels  # noqa: F401 - decides which nki runs
from dslearn.errors import KernelError

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "kernels.md"
SECTION = re.compile(r"^### ([a-z0-9-]+)\n(.*?)(?=^##|\Z)", re.M | re.S)
BLOCK = re.compile(r"^```python (refused|legal)\n(.*?)^```\n", re.M | re.S)
MESSAGE = re.compile(r"(^```python refused\n.*?^```\n\n)```text\n(.*?)```\n", re.M | re.S)
RUN = re.compile(r"^```python run\n(.*?)^```\n", re.M | re.S)
TWO_CORES = "# on two cores\n"
WIDTH = 98


@dataclass(frozen=True)
class Example:
    """One refused or legal block below the rule's heading."""

    rule: str
    kind: str
    source: str


def examples(page: str) -> Iterator[Example]:
    """Every refused and legal block, in the order of the page."""
    for rule, text in SECTION.findall(page):
        for kind, source in BLOCK.findall(text):
            yield Example(rule, kind, source)


def script(source: str) -> str:
    """A block as a script: bodies become kernels that are called on x."""
    if "@nki.jit" in source:
        return source
    cores = 2 if source.startswith(TWO_CORES) else 1
    body = textwrap.indent(source, "    ")
    return f"@nki.jit\ndef kernel(x):\n{body}\nkernel[{cores}](x)\n"


def run(source: str, names: dict[str, Any] | None = None) -> None:
    """Execute a script with nki, nl, nisa, np and x in reach.

    Raises:
        KernelError: as the kernel does.
    """
    import nki
    import nki.isa
    import nki.language

    ramp = np.arange(256 * 512, dtype=np.float32).reshape(256, 512)
    space = names if names is not None else {}
    space |= {"nki": nki, "nl": nki.language, "nisa": nki.isa, "np": np, "x": ramp}
    exec(compile(source, "docs/kernels.md", "exec"), space)


def refusal(example: Example) -> KernelError | None:
    """What running the example raises, None if nothing."""
    try:
        run(script(example.source))
    except KernelError as error:
        return error
    return None


def problem(example: Example) -> str:
    """Why the example does not do what its heading says, or ''."""
    error = refusal(example)
    rule = getattr(error, "rule", None)
    if example.kind == "legal":
        return f"{example.rule}: the legal twin is refused: {error}" if error else ""
    if error is None:
        return f"{example.rule}: the refused example runs"
    return "" if rule == example.rule else f"{example.rule}: refused by rule {rule}: {error}"


def with_messages(page: str) -> str:
    """The page with every message as it is now."""

    def section(found: re.Match[str]) -> str:
        def message(block: re.Match[str]) -> str:
            source = BLOCK.search(block[1])
            assert source, "the pattern begins with a refused block"
            error = refusal(Example(found[1], "refused", source[2]))
            text = textwrap.fill(str(error), WIDTH, break_on_hyphens=False)
            return f"{block[1]}```text\n{text}\n```\n"

        return MESSAGE.sub(message, found[0])

    return SECTION.sub(section, page)


def scripts(page: str) -> list[str]:
    """The blocks that are run in order, sharing their names."""
    return RUN.findall(page)


def main() -> int:
    """Check or rewrite the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    page = PAGE.read_text(encoding="utf-8")
    problems = [p for p in map(problem, examples(page)) if p]
    fresh = with_messages(page)
    if check and fresh != page:
        problems.append("messages are out of date: python tools/kernel_examples.py")
    elif not check:
        PAGE.write_text(fresh, encoding="utf-8")
    print("\n".join(problems) or f"{len(list(examples(page)))} examples do what they say")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
