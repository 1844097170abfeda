"""The kernels of attention at the released sizes: modelled times, on one core and on two.

    python -m benchmarks.attention_kernels [--write]

Without launch; nothing is measured (docs/performance.md). Six rows are a drafted block of decoding:
64 heads of 512, a window of 128, 512 selected entries; 32 index heads of 128. With --write, the
table of docs/performance.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.reference_kernels import PAGE, lines, replaced
from dslearn.formats.records import Kind, Record
from dslearn.kernels import (
    compress_pool,
    index_score,
    index_topk,
    kv_store,
    rope,
    sparse_attn,
)
from dslearn.sim import cost

HEADS, DIM, WINDOW, SELECTED, ROTATED = 64, 512, 128, 512, 64
INDEX_HEADS, INDEX_DIM = 32, 128
Case = tuple[str, Any, tuple[Any, ...]]


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Normal values, the same on every machine."""
    return torch.from_numpy(np.random.default_rng(0).standard_normal(shape, np.float32)).to(dtype)


def packed(rows: int, dim: int, kind: Kind) -> Tensor:
    """Records of normal values."""
    return Record(kind, dim).pack(normal(rows, dim))


def attention(rows: int, selected: int) -> tuple[Any, ...]:
    """Arguments of sparse_attn."""
    held = torch.arange(5000 - WINDOW + 1, 5000 + rows).int()[:, None]
    position = held[WINDOW - 1 :].clone()
    q, sink = normal(rows, HEADS, DIM), normal(HEADS, 1, dtype=torch.float32)
    window = packed(len(held), DIM, "window")
    chosen = torch.arange(rows * selected).view(rows, selected).int() * 7 % 4000
    far = (packed(4000, DIM, "compressed"), chosen) if selected else ()
    return q, position, window, held, sink, WINDOW, True, *far


def cases() -> Iterator[Case]:
    """What is run, with its name."""
    rows = 6
    kinds: tuple[tuple[Kind, int], ...] = (
        ("window", DIM), ("compressed", DIM), ("index", INDEX_DIM)
    )  # fmt: skip
    for kind, dim in kinds:
        pool = torch.zeros(200, Record(kind, dim).stride, dtype=torch.uint8)
        slots = torch.arange(rows).int()[:, None]
        stored = normal(rows, dim), slots, torch.ones(rows, 1), pool, kind, 224
        yield f"kv_store, {kind}", kv_store.kv_store, stored
    turns = normal(rows, ROTATED, dtype=torch.float32)
    yield "rope, queries", rope.rope, (normal(rows, HEADS, DIM), turns, turns)
    yield "sparse_attn", sparse_attn.sparse_attn, attention(rows, SELECTED)
    yield "sparse_attn, 1 row", sparse_attn.sparse_attn, attention(1, SELECTED)
    yield "sparse_attn, window only", sparse_attn.sparse_attn, attention(rows, 0)
    for entries in (2048, 16384):
        q = normal(rows, INDEX_HEADS, INDEX_DIM)
        weights = normal(rows, INDEX_HEADS, dtype=torch.float32)
        keys = packed(entries, INDEX_DIM, "index")
        yield f"index_score, {entries}", index_score.index_score, (q, weights, keys, True, True)
    scores, counts = normal(rows, 2048, dtype=torch.float32), torch.full((rows, 1), 2048).int()
    yield "index_topk, 512 of 2048", index_topk.index_topk, (scores, counts, SELECTED)
    yield "candidate_blocks, 64 of 256", index_topk.candidate_blocks, (scores, counts, 8, 64)
    u, g = (normal(1, rows, DIM, dtype=torch.float32) for _ in range(2))
    state = [normal(1, DIM, dtype=torch.float32) for _ in range(2)]
    weight, at = normal(1, DIM), torch.tensor([[5]]).int()
    lengths = torch.tensor([[rows]]).int()
    pooled = u, weight, 1e-20, True, g, at, lengths, *state
    yield "compress_pool", compress_pool.compress_pool, pooled


def bound(found: cost.Profile) -> str:
    """The engine that is busy for more than 40% of the time; most wait for each other and DMA."""
    engines = ("tensor", "vector", "scalar", "gpsimd")
    busy, engine = max((max(found.busy_us[engine]), engine) for engine in engines)
    share = busy / found.us
    return f"{engine.capitalize()}, busy {share:.0%}" if share > 0.4 else "waiting"


def table() -> Iterator[tuple[str, ...]]:
    """Rows: kernel, time on one core and on two, shares of HBM and PE, what limits it on two."""
    yield "kernel", "1 core µs", "2 cores µs", "of HBM", "of PE", "bound on 2 cores by"
    for name, kernel, arguments in cases():
        one, two = (cost.profile(kernel[cores], *arguments) for cores in (1, 2))
        shares = f"{two.hbm_share:.0%}", f"{two.pe_share:.0%}"
        yield name, f"{one.us:.1f}", f"{two.us:.1f}", *shares, bound(two)


def main() -> None:
    """Print the table, or put it in the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="replace the table of the page")
    if parser.parse_args().write:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(replaced(page, "attention", table()), encoding="utf-8")
    else:
        print("\n".join(lines(table())))


if __name__ == "__main__":
    main()
