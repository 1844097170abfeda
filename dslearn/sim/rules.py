"""What a kernel may not do: one rule per refusal, and the exceptions that name it.

Every refusal of the simulator carries a rule: `error.rule` is its name, and the text ends with
`[rule name: what the hardware demands]`. The exceptions are also of the vendor's types
(`AssertionError`, `IndexError`, ...), so code written against the vendor's simulator catches them.
Source: docs/reference/nki.md, section "Rules"; docs/kernels.md explains each with an example.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from dslearn.errors import KernelError, UsageError


@dataclass(frozen=True)
class Rule:
    """What the hardware demands, and why."""

    what: str
    why: str


RULES: dict[str, Rule] = {
    # Memory
    "sbuf-capacity": Rule(
        "live SBUF tiles fit in 208 KiB per partition",
        "SBUF is 128 partitions of 224 KiB, and the compiler keeps 16 KiB of each",
    ),
    "psum-capacity": Rule(
        "live PSUM tiles fit in 8 banks of 2 KiB per partition",
        "PSUM is 2 MiB in all: results leave it before new ones arrive",
    ),
    "psum-bank": Rule(
        "a matmul destination lies within one 2 KiB PSUM bank",
        "the tensor engine writes through one bank at a time: 512 fp32 columns",
    ),
    "address": Rule(
        "an explicit address lies inside its memory, PSUM's on a bank boundary",
        "the allocator takes addresses as they are",
    ),
    "tile-rank": Rule(
        "on-chip tiles have a partition dimension and one to four free dimensions",
        "an engine's access pattern has one partition step and up to four free steps",
    ),
    "partition-limit": Rule(
        "at most 128 partitions",
        "SBUF and PSUM have 128 partitions, one per lane",
    ),
    "start-partition": Rule(
        "more than 64 partitions start at 0, 33 to 64 at 0 or 64, up to 32 at a multiple of 32",
        "engines reach partitions through four quadrants of 32",
    ),
    "uninitialised": Rule(
        "an instruction reads only elements that something has written",
        "memory keeps what the last kernel left there",
    ),
    "bounds": Rule(
        "indices and access patterns stay inside their tensor",
        "an address outside belongs to somebody else",
    ),
    "view": Rule(
        "a view can be expressed as one offset and one stride per dimension",
        "engines and DMA walk fixed strides",
    ),
    "partition-view": Rule(
        "the partition dimension of an on-chip view stays first and contiguous",
        "a lane cannot read another lane's memory",
    ),
    "region": Rule(
        "operands lie in a memory that the instruction's engine reaches",
        "engines see SBUF and PSUM, DMA sees HBM and SBUF, the tensor engine writes PSUM only",
    ),
    # Shapes, dtypes, engines
    "shape": Rule(
        "operands agree in partitions and in elements per partition",
        "every lane does one element per cycle of each operand",
    ),
    "two-psum": Rule(
        "at most one input of the instruction lies in PSUM",
        "the Vector engine has one PSUM read port for this instruction",
    ),
    "dtype": Rule(
        "operands have dtypes that the instruction takes",
        "each datapath is built for some formats",
    ),
    "engine": Rule(
        "the operation exists on the engine that is asked to do it",
        "the four engines have different instruction sets",
    ),
    "platform": Rule(
        "the instruction exists on trn2",
        "some instructions and formats came with trn3",
    ),
    "operand": Rule(
        "an operand is of the kind and range that the instruction takes",
        "the instruction's encoding holds nothing else",
    ),
    # Tensor engine
    "matmul-size": Rule(
        "contraction and stationary columns at most 128, moving columns at most 512",
        "the array is 128 x 128 and one PSUM bank holds 512 fp32 columns",
    ),
    "psum-accumulate": Rule(
        "accumulation adds to what a matmul wrote",
        "PSUM accumulates only while its bank is in accumulation state",
    ),
    # DMA
    "dma-cast": Rule(
        "the hardware descriptor engine moves bytes, it does not cast",
        "only software descriptors route data through the converter",
    ),
    "dma-descriptor": Rule(
        "row indices take software descriptors, descriptors made beforehand no runtime address",
        "only GpSimd computes an address per row, and the host does not know values of the run",
    ),
    "dma-unique": Rule(
        "rows that a DMA adds to are named once",
        "each row is read, added to and written by itself: of two that meet, one is lost",
    ),
    "dma-transpose": Rule(
        "DMA exchanges the first and the last dimension; with descriptors made by hardware, or "
        "gathered rows, 2-byte elements in blocks of 16 rows and 128 columns",
        "the transpose happens in the DMA engine's 16-row buffer",
    ),
    # Two cores
    "lnc": Rule(
        "a kernel is launched on one or two cores",
        "a logical core is one or two physical ones",
    ),
    "lnc-control-flow": Rule(
        "both cores of a launch execute the same instructions",
        "one program is compiled for both",
    ),
    "lnc-disjoint": Rule(
        "between two barriers the cores write disjoint data and do not read what the other writes",
        "nothing orders the cores but a barrier",
    ),
    "lnc-barrier": Rule(
        "both cores meet at every barrier and exchange",
        "a core that waits alone waits forever",
    ),
    # Language
    "register": Rule(
        "a runtime register is used only as an offset, a loop bound or a register operand",
        "Python runs when the kernel is compiled, before the register has a value",
    ),
    "operators": Rule(
        "tensors are computed with by instructions, not by Python",
        "Python runs when the kernel is compiled, before there are data",
    ),
    "loop": Rule(
        "a dynamic loop has a positive constant step and keeps its tiles to itself",
        "its body is compiled once and its memory is reused by every trip",
    ),
    "nested-jit": Rule(
        "a kernel calls functions, not kernels",
        "the call is inlined when the outer kernel is compiled",
    ),
    "arguments": Rule(
        "calls bind to the published signature",
        "the compiler knows no other arguments",
    ),
    "name": Rule(
        "kernels use the names that NKI 0.6 has",
        "older names were removed, and nothing else is compiled",
    ),
    "not-simulated": Rule(
        "the stand-in does not simulate this",
        "nothing in this project needs it",
    ),
}


# Rules whose breach leaves a defined value, so that a simulation can go on past it.
RELAXABLE = ("lnc-control-flow", "lnc-disjoint", "psum-accumulate", "start-partition")
_relaxed: ContextVar[frozenset[str]] = ContextVar("dslearn_relaxed", default=frozenset())


@contextmanager
def relax(*rules: str) -> Iterator[None]:
    """Warn instead of refusing where `rules` are broken, inside the block.

    For kernels written by others that bend a rule the vendor's simulator does not check. What
    hardware would then do is not known, and the simulator's result is one guess.

    Raises:
        UsageError: a rule that cannot be relaxed.
    """
    for rule in rules:
        if rule not in RELAXABLE:
            raise UsageError(f"relax({rule!r}): must be one of {', '.join(RELAXABLE)}")
    token = _relaxed.set(_relaxed.get() | set(rules))
    try:
        yield
    finally:
        _relaxed.reset(token)


def enforced(rule: str) -> bool:
    """Whether breaking `rule` is an error here; where it is relaxed, a warning names it."""
    if rule not in _relaxed.get():
        return True
    warnings.warn(f"rule {rule} is broken and relaxed: {RULES[rule].what}", stacklevel=3)
    return False


class _Ruled(KernelError):
    """Adds the rule to the text."""

    def __init__(self, message: str, rule: str) -> None:
        self.message, self.rule = message, rule
        super().__init__(f"{message} [rule {rule}: {RULES[rule].what}]")

    def __reduce__(self) -> tuple[type[_Ruled], tuple[str, str]]:
        return type(self), (self.message, self.rule)  # pickled for another process


class RuleError(_Ruled, AssertionError):
    """A kernel does what the hardware refuses."""


class BoundsError(_Ruled, IndexError):
    """An index or access pattern leaves its tensor."""


class ArgumentError(_Ruled, TypeError):
    """A call with arguments that the language does not have."""


class UnknownNameError(_Ruled, AttributeError):
    """A name that the language does not have, or not any more."""


class NkiValidationError(_Ruled):
    """A launch, or a pair of cores, that is not valid."""


class NotSupportedError(_Ruled, NotImplementedError):
    """Something that trn2, or this stand-in, does not do."""
