"""The grouped product of the output projection: every group of heads has its own matrix."""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from dslearn.kernels.blocks import (
    LIMITS,
    UNIT,
    cut,
    mine,
    plain,
    product,
    steps_of,
    store_rows,
)
from dslearn.kernels.folded import diagonal, folded
from dslearn.kernels.linear_parts import columns


def _part(turned: nl.NkiTensor, weight: nl.NkiTensor, scale: nl.NkiTensor, y: nl.NkiTensor) -> None:
    """A part of one group's outputs: turned [128, J, R], weight [128, J, W], y [R, W]."""
    _, tiles, rows = turned.shape
    quantised = scale != None  # noqa: E711 - the language has no `is`
    if quantised:
        source, wide = folded(turned, weight, scale, 1), 4 * rows
    else:
        source, wide = plain(lambda t: turned[:, t, :], steps_of(weight), 1), rows
    results = []
    for compute in product(cut(weight.shape[2] // UNIT), 1, tiles, wide, source):
        for block, sums in compute():
            out = nl.ndarray(shape=(UNIT * block[1], rows), dtype=y.dtype, buffer=nl.sbuf)
            if quantised:
                diagonal(out, sums[0])
            else:
                nisa.tensor_copy(dst=out, src=sums[0])
            results.append(out)
    store_rows(results, y, 0)


@nki.jit
def grouped(x: nl.NkiTensor, weight: nl.NkiTensor, scale: nl.NkiTensor = None) -> nl.NkiTensor:
    """y[r, g, n] = sum over k of x[r, g, k] · W[g, k, n].

    Dimensions:
        R rows, 1 to 128; G groups; K inputs of a group, K' the same padded to 128; N outputs of a
        group, a multiple of 64; J = K'/128.
    Args:
        x: [R, G, K] bf16, in HBM; not quantised, whatever the weight is.
        weight: [G, P, 128, J, N/P] in HBM, the outputs in P parts, input 128 j + p at
            [.., p, j, ..]: bf16, or uint8 with e4m3 codes up to 240 and a scale. P is 1 for an
            even G, else 2 (`formats.inputs_first.by_part`).
        scale: [G, P, 4, N/32/P, J] uint8, exponents of 32 x 32 tiles for lanes 0 to 31, 32 to 63,
            .., in HBM; None for a bf16 weight.
    Returns:
        y: [R, G, N] bf16, in shared HBM.
    Notes:
        33.6 MB of fp8 codes of the released 8 x 4096 x 1024 take 0.05 ms. fp8 tiles go into the
        tensor engine as they are, their scales to the activations (`kernels/folded.py`), exactly.
        That suits few rows: modelled 0.06 ms for 6, 0.09 for 16, 0.58 for 64, where a bf16 weight
        takes 0.11 at any of them.
        Sums are fp32 in PSUM, rounded once. Two cores take half of the groups each, or half of
        the outputs of every group if the groups are odd.
    Pseudocode:
        for each group g:
            y[r, g, n] = sum over k of (x[r, g, k] · 2^(scale[g, k/32, n/32] - 127)) · W[g, k, n]
    """
    rows, groups, _ = x.shape
    _, parts, _, tiles, width = weight.shape
    assert parts == (1 if groups % 2 == 0 else 2), "parts: 1 for an even number of groups, else 2"
    y = nl.ndarray(shape=(rows, groups, parts * width), dtype=x.dtype, buffer=nl.shared_hbm)
    assert rows <= 128 and x.shape[2] <= 128 * tiles, LIMITS
    some = groups * parts // 2  # (group, part) pairs of one core
    for core in mine():
        for i in range(some):
            g, part = (core * some + i, 0) if parts == 1 else (i, core)
            kind = nl.float32 if scale != None else x.dtype  # noqa: E711
            turned = columns(x[:, g, :], 0, rows, tiles, dtype=kind)
            grid = scale[g, part] if scale != None else None  # noqa: E711
            _part(turned, weight[g, part], grid, y[:, g, part * width : part * width + width])
    return y
