"""The two examples of a rule as whole files, ready to be linted."""

from __future__ import annotations

import textwrap

_IMPORTS = "import nki\nimport nki.isa as nisa\nimport nki.language as nl\n\n\n"
_BEFORE = """\
@nki.jit
def kernel(x, n=4):
    tile = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
"""
_AFTER = """\
    out = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out
"""


def frame(example: str) -> str:
    """`example` as a file: in a kernel with an input `x`, an SBUF `tile` and a number `n`.

    An example that defines its own kernel only gets the imports; one that returns ends the kernel.
    """
    if "@nki.jit" in example:
        return _IMPORTS + example + "\n"
    body = textwrap.indent(example, "    ") + "\n"
    ends = any(line.startswith("return ") for line in example.splitlines())
    return _IMPORTS + _BEFORE + body + ("" if ends else _AFTER)
