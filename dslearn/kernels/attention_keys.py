"""Keys of attention out of their records: decoded, turned, and what hides them from a query.

A block is up to 128 keys, on the partitions. Its `bias` has a column per query: 0 for a key that is
seen, HIDDEN for one that is not, NaN for one that is seen and holds NaN.
"""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl

from dslearn.kernels.record_read import decoded, opened, poisoned
from dslearn.kernels.tiles import PARTITIONS, load_tile

HIDDEN = -(2.0**127)  # added to a score: no score survives it, and it is a number in bf16
Dtypes = tuple[nl.DType, nl.DType]  # of products with queries, of products with probabilities
Keys = tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor]  # values [keys, D], turned, bias


def _cut(dim: int) -> tuple[int, int]:
    """(number, size) of equal pieces of at most 128 dims, for a sum over partitions."""
    count = -(-dim // PARTITIONS)
    while dim % count:
        count += 1
    return count, dim // count


def turned(tile: nl.NkiTensor, dtype: nl.DType) -> nl.NkiTensor:
    """A tile [rows, D] as [size, number, rows] in `dtype`: dims on the partitions."""
    rows, dim = tile.shape
    count, size = _cut(dim)
    out = nl.ndarray(shape=(size, count, rows), dtype=dtype, buffer=nl.sbuf)
    width = 2 if tile.dtype == nl.bfloat16 else 4
    together = 2048 // (rows * width)  # pieces that a bank holds
    for first in range(0, count, together):
        some = min(together, count - first)
        turned = nl.ndarray(shape=(size, some, rows), dtype=tile.dtype, buffer=nl.psum)
        for i in range(some):
            piece = tile[:, (first + i) * size : (first + i + 1) * size]
            nisa.nc_transpose(dst=turned[:, i, :], data=piece, engine=nisa.engine.tensor)
        nisa.tensor_copy(dst=out[:, first : first + some, :], src=turned, engine=nisa.engine.scalar)
    return out


def _biased(hidden: nl.NkiTensor, bad: nl.NkiTensor, dtype: nl.DType) -> nl.NkiTensor:
    """What to add to scores [keys, queries]: HIDDEN where hidden, NaN where seen and bad (1.0)."""
    keys, queries = hidden.shape
    seen = nl.ndarray(shape=hidden.shape, dtype=nl.uint8, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=seen, data=hidden, op0=nl.equal, operand0=0.0, op1=nl.multiply, operand1=bad
    )
    out = nl.ndarray(shape=(keys, queries), dtype=dtype, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=out, data=hidden, op0=nl.multiply, operand0=HIDDEN)
    nisa.tensor_copy_predicated(dst=out, src=float("nan"), predicate=seen)
    return out


def window_of(
    window: nl.NkiTensor, held: nl.NkiTensor, position: nl.NkiTensor, width: int, dim: int,
    dtypes: Dtypes,
) -> list[Keys]:  # fmt: skip
    """All window records, decoded once for all queries, 128 at a time; bias has a column each."""
    rows, stride = window.shape
    queries = position.shape[0]
    blocks = []
    for first in range(0, rows, PARTITIONS):
        size = min(PARTITIONS, rows - first)
        raw = load_tile(window, first, size, 0, stride)
        at = nl.ndarray(shape=(size, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=at, src=held[first : first + size, :])
        asked = nl.ndarray(shape=(size, queries), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=asked, src=position.reshape((1, queries)).broadcast(0, size))
        age = nl.ndarray(shape=(size, queries), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=age, data=asked, op0=nl.subtract, operand0=at)
        old = nl.ndarray(shape=(size, queries), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=old, data=age, op0=nl.greater_equal, operand0=float(width))
        none = nl.ndarray(shape=(size, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=none, data=at, op0=nl.less, operand0=0.0)
        hidden = nl.ndarray(shape=(size, queries), dtype=nl.float32, buffer=nl.sbuf)
        nisa.scalar_tensor_tensor(
            dst=hidden, data=age, op0=nl.less, operand0=0.0, op1=nl.maximum, operand1=old
        )
        nisa.tensor_scalar(dst=hidden, data=hidden, op0=nl.maximum, operand0=none)
        full = nl.ndarray(shape=(size, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=full, value=1.0)
        values = decoded(raw, opened(raw, "window", dim), "window", full, dtypes[1])
        bias = _biased(hidden, poisoned(raw, "window", dim), dtypes[0])
        blocks.append((values, turned(values, dtypes[0]), bias))
    return blocks


def columns(selected: nl.NkiTensor) -> nl.NkiTensor:
    """Rows selected [T, K] of HBM as columns int32 [128, T, K/128] in SBUF, -1 past the last."""
    queries, count = selected.shape
    full, rest = count // PARTITIONS, count % PARTITIONS
    shape = (min(count, PARTITIONS), queries, full + (1 if rest else 0))
    tile = nl.ndarray(shape=shape, dtype=nl.int32, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=-1)
    if full:
        some = selected[:, 0 : full * PARTITIONS].reshape_dim(1, (full, PARTITIONS))
        nisa.dma_copy(dst=tile[:, :, 0:full], src=some.permute((2, 0, 1)))
    if rest:
        last = selected[:, full * PARTITIONS : count].permute((1, 0))
        nisa.dma_copy(dst=tile[0:rest, :, full], src=last)
    return tile


def checked(rows: nl.NkiTensor, number: int) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """Rows moved into 0 .. number - 1, and which were inside (1.0), both of the shape of `rows`."""
    inside = nl.ndarray(shape=rows.shape, dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=inside, data=rows, op0=nl.maximum, operand0=0.0, op1=nl.minimum,
        operand1=float(number - 1),
    )  # fmt: skip
    valid = nl.ndarray(shape=rows.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=valid, data1=inside, data2=rows, op=nl.equal)
    return inside, valid


def of_query(found: nl.NkiTensor, t: int, selected: nl.NkiTensor) -> list[nl.NkiTensor]:
    """What query t has in a tile like `columns(selected)`: a column [keys, 1] per block of keys."""
    blocks = []
    for b in range(found.shape[2]):
        size = min(PARTITIONS, selected.shape[1] - PARTITIONS * b)
        blocks.append(found[0:size, t, b : b + 1])
    return blocks


def entries_of(
    entries: nl.NkiTensor, rows: list[nl.NkiTensor], valid: list[nl.NkiTensor], dim: int,
    dtypes: Dtypes,
) -> list[tuple[nl.NkiTensor, nl.NkiTensor]]:  # fmt: skip
    """Values and bias of blocks of records, gathered by rows [keys, 1] and decoded."""
    stride = entries.shape[1]
    found = []
    for at in rows:
        raw = nl.ndarray(shape=(at.shape[0], stride), dtype=nl.uint8, buffer=nl.sbuf)
        pattern = [[stride, at.shape[0]], [1, stride]]
        nisa.dma_copy(dst=raw, src=entries.ap(pattern=pattern, offset=0, vector_offset=at))
        found.append((raw, opened(raw, "compressed", dim)))
    blocks = []
    for i in range(len(found)):
        (raw, signed), inside = found[i], valid[i]
        hidden = nl.ndarray(shape=inside.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=hidden, data=inside, op0=nl.equal, operand0=0.0)
        bias = _biased(hidden, poisoned(raw, "compressed", dim), dtypes[0])
        blocks.append((decoded(raw, signed, "compressed", inside, dtypes[1]), bias))
    return blocks
