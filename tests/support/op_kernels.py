"""Small kernels for tests of operations; import `dslearn.kernels` before this."""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from dslearn.kernels.tiles import load_tile, store_tile


@nki.jit
def add_into(cache: nl.NkiTensor, rows: nl.NkiTensor) -> nl.NkiTensor:
    """cache += rows, in place, [R, K] fp32 with R up to 128."""
    height, width = cache.shape
    tile = load_tile(cache, 0, height, 0, width)
    more = load_tile(rows, 0, height, 0, width)
    nisa.tensor_tensor(dst=tile, data1=tile, data2=more, op=nl.add)
    store_tile(cache, 0, 0, tile)
    return cache


@nki.jit
def times(x: nl.NkiTensor, factor: float) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """(x · factor, x · -factor), [R, K] with R a multiple of 32 and up to 128."""
    height, width = x.shape
    assert height % 32 == 0, "rows: a multiple of 32"
    results = []
    for sign in (1.0, -1.0):
        out = nl.ndarray((height, width), dtype=x.dtype, buffer=nl.shared_hbm)
        tile = load_tile(x, 0, height, 0, width)
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=sign * factor)
        store_tile(out, 0, 0, tile)
        results.append(out)
    return tuple(results)


@nki.jit
def same(x: nl.NkiTensor) -> nl.NkiTensor:
    """The argument itself."""
    return x


@nki.jit
def copied(codes: nl.NkiTensor) -> nl.NkiTensor:
    """The bytes [R, K], moved through SBUF."""
    out = nl.ndarray(codes.shape, dtype=codes.dtype, buffer=nl.shared_hbm)
    store_tile(out, 0, 0, load_tile(codes, 0, codes.shape[0], 0, codes.shape[1]))
    return out
