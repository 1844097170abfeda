"""Keys to cache records, and the records to their rows of a cache."""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from dslearn.kernels.record_write import arithmetic, encoded, layout, new
from dslearn.kernels.tiles import PARTITIONS, load_tile, row_blocks


def _spread(rows: int, blocks: int) -> int:
    """In how many partitions a row is cut: the more, the shorter each instruction."""
    return max([k for k in range(1, blocks + 1) if blocks % k == 0 and rows * k <= PARTITIONS])


def _records(x: nl.NkiTensor, kind: str, fp8_max: int) -> nl.NkiTensor:
    """Records uint8 [rows, S] in SBUF of up to 128 rows x [rows, D] in HBM."""
    rows, dim = x.shape
    block, data, scale = layout(kind, dim)
    parts = _spread(rows, dim // block)
    cut = x.reshape((rows * parts, dim // parts))
    given = load_tile(cut, 0, rows * parts, 0, dim // parts)
    wide = new(given, nl.float32)
    nisa.tensor_copy(dst=wide, src=given)
    codes, scales = encoded(
        wide.reshape((rows * parts, dim // parts // block, block)), kind, fp8_max
    )
    out = nl.ndarray(shape=(rows, data + scale), dtype=nl.uint8, buffer=nl.sbuf)
    nisa.dma_copy(dst=out[:, 0:data], src=codes)
    nisa.dma_copy(dst=out[:, data : data + scale], src=scales)
    return out


def _rows_where(slots: nl.NkiTensor, chosen: nl.NkiTensor, past: int) -> nl.NkiTensor:
    """slots [rows, 1] int32 where chosen (1.0 or 0.0), else `past`, a row that does not exist."""
    moved = arithmetic(slots, nl.subtract, float(past))
    kept = new(slots, nl.float32)
    nisa.tensor_tensor(dst=kept, data1=moved, data2=chosen, op=nl.multiply)
    out = new(slots, nl.int32)
    nisa.tensor_scalar(dst=out, data=kept, op0=nl.add, operand0=float(past))
    return out


def _scatter(pool: nl.NkiTensor, slots: nl.NkiTensor, records: nl.NkiTensor) -> None:
    """Whole rows of the pool; slots past its end are skipped."""
    rows, width = records.shape
    target = pool.ap(pattern=[[width, rows], [1, width]], offset=0, vector_offset=slots)
    nisa.dma_copy(dst=target, src=records, oob_mode=nisa.oob_mode.skip)


@nki.jit
def kv_store(
    x: nl.NkiTensor,
    slots: nl.NkiTensor,
    valid: nl.NkiTensor,
    pool: nl.NkiTensor,
    kind: str,
    fp8_max: int = 448,
) -> nl.NkiTensor:
    """pool[slots[t]] = record of x[t] where valid, zeros elsewhere.

    Dimensions:
        T rows, D values, N rows of the pool, fewer than 2^24; S bytes of a record.
    Args:
        x: [T, D] bf16 or fp32, in HBM; D a multiple of the record's block.
        slots: [T, 1] int32, rows of the pool, those of valid rows all different, in HBM; what would
            go past the pool's end is dropped.
        valid: [T, 1] fp32, 1.0 or 0.0; a row that is not valid names a scratch row, in HBM.
        pool: [N, S] uint8, in HBM; written.
        kind: "window", "compressed" or "index".
        fp8_max: 448, 240 or 224: bounds e4m3 codes, and the scale of "compressed".
    Returns:
        pool.
    Notes:
        Bytes equal those of `formats.records.Record.pack` for finite values; a block with NaN or
        infinity gets the NaN scale, and codes 0. Codes are found with magic additions and bit
        operations, in fp32, and narrowed once, so 448 works where trn2's own e4m3 ends at 240. A
        row is cut at blocks over as many partitions as there are: 6 rows of 512 take 96 lanes, and
        all instructions the 64 cycles that are the least. A record is put together in SBUF and
        stored as one row. Assumes that subnormal fp32 numbers are computed with; they occur below
        2^-126 alone.
        Two cores take half of the rows each. Rows that are not valid may share a scratch row, so
        the first core alone writes zeros there.
    Pseudocode:
        for each row t that is valid:
            s[n] = scale of block n of x[t];  c = nearest code of x[t, k] / s[k/B]
            pool[slots[t]] = c, then s
        for each row t that is not:
            pool[slots[t]] = 0
    """
    rows = x.shape[0]
    past = pool.shape[0]
    _, data, scale = layout(kind, x.shape[1])
    assert pool.shape[1] == data + scale, "pool: rows as wide as a record"
    first = 1.0 if nl.program_id(axis=0) == 0 else 0.0
    shared = rows >= nl.num_programs()
    for start, height in row_blocks(rows):
        record = _records(x[start : start + height, :], kind, fp8_max)
        mine = load_tile(valid, start, height, 0, 1)
        if not shared:  # a single row cannot be shared, and is not written twice
            mine = arithmetic(mine, nl.multiply, first)
        place = _rows_where(load_tile(slots, start, height, 0, 1), mine, past)
        _scatter(pool, place, record)
    zeros = nl.ndarray(shape=(min(rows, PARTITIONS), pool.shape[1]), dtype=nl.uint8, buffer=nl.sbuf)
    nisa.memset(dst=zeros, value=0)
    for start in range(0, rows, PARTITIONS):
        height = min(PARTITIONS, rows - start)
        free = load_tile(valid, start, height, 0, 1)
        free = arithmetic(free, nl.multiply, -first, nl.add, first)
        place = _rows_where(load_tile(slots, start, height, 0, 1), free, past)
        _scatter(pool, place, zeros[0:height, :])
    return pool
