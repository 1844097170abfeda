"""What is handed to a graph: layouts, views of one storage, where the memory is.

Source: docs/regions.md, "Lint".
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from torch import fx

from dslearn.regions.lint.rule import Hit, Rule
from dslearn.regions.lint.trace import Trace, Value, overwritten, place, value

RULES = (
    Rule(
        id="noncontiguous-input",
        level="warn",
        what="inputs are contiguous",
        why="the executor copies any other layout into place on every call",
        fix="store it in the order in which the graph reads it, or make it contiguous once",
        fires="""
def step(x, w):
    return x @ w

inputs = torch.ones(1, 64), torch.ones(32, 64).T
""",
        legal="""
def step(x, w):
    return x @ w.T

inputs = torch.ones(1, 64), torch.ones(32, 64)
""",
    ),
    Rule(
        id="aliased-views",
        level="error",
        what="no overlapping views of one storage among the inputs when one is written",
        why="the graph is rebuilt on the whole storage with as_strided and as_strided_scatter, "
        "which the compiler lowers to a copy or not at all",
        fix="give every layer a contiguous block of its own (layer-major), or pass the whole "
        "tensor and slice it inside",
        fires="""
def step(pool, layer, new):
    layer.copy_(new)
    return pool.sum()

pool = torch.zeros(2, 16, 8)
inputs = pool, pool[1], torch.ones(16, 8)
""",
        legal="""
def step(pool, new):
    pool[1].copy_(new)
    return pool.sum()

inputs = torch.zeros(2, 16, 8), torch.ones(16, 8)
""",
    ),
    Rule(
        id="storage-dtypes",
        level="error",
        what="no two dtypes on one storage among the inputs when one is written",
        why="no cast can say that a store through one view changes the other: tracing refuses "
        "it, or reads the old bytes",
        fix="keep one dtype per storage and pack by arithmetic: lo + 256 * hi",
        fires="""
def step(bytes_, words, new):
    bytes_.copy_(new)
    return words + 1

pool = torch.zeros(8, dtype=torch.int16)
inputs = pool.view(torch.uint8), pool, torch.ones(16, dtype=torch.uint8)
""",
        legal="""
def step(words, new):
    pairs = new.to(torch.float32).view(-1, 2)
    packed = pairs[:, 0] + 256 * pairs[:, 1]
    words.copy_(torch.where(packed >= 32768, packed - 65536, packed).to(torch.int16))
    return words + 1

inputs = torch.zeros(8, dtype=torch.int16), torch.ones(16, dtype=torch.uint8)
""",
    ),
    Rule(
        id="host-tensor",
        level="error",
        what="every input lives where the graph runs",
        why="the executor copies host memory to the device on every call, all of it",
        fix="look up on the host and hand in the rows",
        fires="""
def step(ids, table):
    return table.to(ids.device)[ids]

inputs = torch.zeros(4, dtype=torch.int64, device="meta"), torch.ones(128, 8)
""",
        legal="""
def step(rows):
    return rows * 2

inputs = (torch.zeros(4, 8, device="meta"),)
""",
    ),
)


def check(trace: Trace) -> Iterator[Hit]:
    """Rules about single inputs, then about pairs of them."""
    known = [(node, shown) for node in trace.inputs if (shown := value(node)) and node.users]
    devices = {shown.device.type for _, shown in known} - {"cpu"}
    for node, shown in known:
        name = node.meta["name"]
        if not shown.contiguous:
            said = f"{name} {list(shown.shape)} has strides {list(shown.stride)}"
            message = f"{said}: {shown.nbytes:,} bytes are copied per call"
            yield Hit("noncontiguous-input", trace.used(node), message)
        if node.meta["host"] or (devices and shown.device.type == "cpu"):
            message = f"{name} lies in host memory: {shown.nbytes:,} bytes cross per call"
            yield Hit("host-tensor", trace.used(node), message)
    written = overwritten(trace)
    for (a, of_a), (b, of_b) in combinations(known, 2):
        if of_a.storage == of_b.storage and (a in written or b in written):
            yield from _pair(trace, (a, of_a), (b, of_b), written)


def _pair(
    trace: Trace,
    a: tuple[fx.Node, Value],
    b: tuple[fx.Node, Value],
    written: dict[fx.Node, fx.Node],
) -> Iterator[Hit]:
    """Two inputs on one storage, one of which is written."""
    one = a[0] if a[0] in written else b[0]
    names = f"{a[0].meta['name']} and {b[0].meta['name']}"
    said = f"{names} share memory, and {one.meta['name']} is written"
    if a[1].dtype is not b[1].dtype:
        yield Hit("storage-dtypes", place(written[one]), f"{said}: {a[1].dtype}, {b[1].dtype}")
    elif not _apart(a[1], b[1]):
        yield Hit("aliased-views", place(written[one]), said)


def _apart(a: Value, b: Value) -> bool:
    """Whether tracing can tell that two views do not overlap.

    It sees ranges that do not touch, and columns of one matrix side by side; other interleaved
    views count as overlapping, whether they do or not.
    """
    if a.span.stop <= b.span.start or b.span.stop <= a.span.start:
        return True
    if len(a.shape) != 2 or a.stride != b.stride or a.stride[1] != 1 or not a.stride[0]:
        return False
    row = a.stride[0]
    (left, width), (right, other) = sorted((one.offset % row, one.shape[1]) for one in (a, b))
    return left + width <= right and right + other <= row
