"""The Tensor engine: nc_matmul.

K contraction (partitions of both inputs), M columns of the stationary tile, N of the moving one:
dst[M, N] = stationary[K, M].T @ moving[K, N], fp32. The order of the sum over K is not documented,
so each call sums in double precision and rounds once; calls add up in fp32.
Source: docs/reference/nki.md, section "Matmul".
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dslearn.sim.access import Place, load, store
from dslearn.sim.dtypes import NUMPY
from dslearn.sim.isa import checks, operands
from dslearn.sim.isa.accumulation import adds_to
from dslearn.sim.isa.enums import matmul_perf_mode, member
from dslearn.sim.isa.pe_tiling import Tiling, tiling
from dslearn.sim.isa.transpose import every_second_byte
from dslearn.sim.program import NkiInstruction, current
from dslearn.sim.rules import ArgumentError, RuleError
from dslearn.sim.tensor import NkiTensor

STATIONARY_FMAX, MOVING_FMAX, PMAX = 128, 512, 128
FLOAT8 = ("float8_e4m3", "float8_e5m2")
WIDE = ("float32", "tfloat32")
DTYPES = (*FLOAT8, "bfloat16", "float16", *WIDE)


class _Call(NamedTuple):
    """A checked call."""

    dst: NkiTensor
    stationary: NkiTensor
    moving: NkiTensor
    k: int
    m: int
    n: int


def nc_matmul(  # noqa: PLR0913 - the vendor's signature
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False,
    is_transpose: bool = False,
    accumulate: bool | None = None,
    tile_position: tuple[int, ...] = (),
    tile_size: tuple[int, ...] = (),
    perf_mode: Any = matmul_perf_mode.none,
    name: str | None = None,
) -> NkiInstruction:
    """dst (PSUM, fp32) = stationary.T @ moving (SBUF), or is added to.

    `accumulate`: False overwrites, True adds to what a matmul wrote, None adds where a matmul wrote
    since the tile was allocated or last written by another engine, and overwrites elsewhere.
    double_row takes fp8 tiles (K/2, 2, M) and (K/2, 2, N), contracted over partition and pair.
    is_transpose moves bits: `moving` is an identity (or permutation), dst has stationary's dtype.
    The onezero hints change the speed of fp32, no value.

    Raises:
        RuleError: rules region, matmul-size, shape, dtype, psum-bank, psum-accumulate, operand,
            platform, uninitialised.
    """
    at = "nc_matmul"
    if not (accumulate is None or isinstance(accumulate, bool | np.bool_)):
        raise ArgumentError(
            f"{at} accumulate={accumulate!r}: must be True, False or None", rule="arguments"
        )
    dst = checks.tile(at, "dst", dst, checks.PSUM)
    stationary = checks.tile(at, "stationary", stationary, checks.SBUF)
    moving = checks.tile(at, "moving", moving, checks.SBUF)
    _check_dtypes(stationary, moving)
    mode = member(matmul_perf_mode, perf_mode, f"{at} perf_mode")
    double = mode is matmul_perf_mode.double_row
    place = tiling(tile_position, tile_size)
    if double:
        _check_double_row(stationary, moving, is_transpose, place)
    call = _sized(dst, stationary, moving, double, place)
    checks.one_bank(at, dst)
    if is_transpose:
        _transpose(call, accumulate)
    else:
        _multiply(call, accumulate)
    return current().emit(
        at, "tensor", (dst,), (stationary, moving), name,
        k=call.k, m=call.m, n=call.n, perf_mode=mode.name, is_transpose=bool(is_transpose),
        accumulate=accumulate, onezero=bool(is_stationary_onezero or is_moving_onezero),
        tile_position=place.position, tile_size=place.size,
    )  # fmt: skip


def _check_dtypes(stationary: NkiTensor, moving: NkiTensor) -> None:
    """Check what the Tensor engine multiplies.

    Raises:
        RuleError: rule dtype, or platform for formats of trn3.
    """
    for what, t in (("stationary", stationary), ("moving", moving)):
        if t.dtype == "float8_e4m3fn" or t.dtype.endswith("_x4"):
            raise RuleError(
                f"nc_matmul {what} is {t.dtype}, which came with trn3: view codes up to 240 as "
                "float8_e4m3, or dequantise",
                rule="platform",
            )
        if t.dtype not in DTYPES:
            raise RuleError(
                f"nc_matmul {what} is {t.dtype}: must be {', '.join(DTYPES)}", rule="dtype"
            )
    if (stationary.dtype in WIDE) != (moving.dtype in WIDE):
        raise RuleError(
            f"nc_matmul of {stationary.dtype} with {moving.dtype}: float32 and tfloat32 mix only "
            "with each other; copy one to the other's dtype",
            rule="dtype",
        )


def _check_double_row(
    stationary: NkiTensor, moving: NkiTensor, is_transpose: bool, place: Tiling
) -> None:
    """Check the fp8 mode that contracts two rows per cycle.

    Raises:
        RuleError: rules dtype, shape, operand.
    """
    for what, t in (("stationary", stationary), ("moving", moving)):
        if t.dtype not in FLOAT8:
            raise RuleError(f"nc_matmul double_row {what} is {t.dtype}: fp8 only", rule="dtype")
        if t.ndim < 3 or t.shape[1] != 2:
            raise RuleError(
                f"nc_matmul double_row {what} {t.shape}: must be (K/2, 2, columns), the pair first",
                rule="shape",
            )
    if is_transpose or place.size[1] != STATIONARY_FMAX:
        raise RuleError(
            "nc_matmul double_row goes with neither is_transpose nor column tiles", rule="operand"
        )


def _sized(
    dst: NkiTensor, stationary: NkiTensor, moving: NkiTensor, double: bool, place: Tiling
) -> _Call:
    """The call with its K, M, N, within the array's limits.

    Raises:
        RuleError: rules matmul-size, shape.
    """
    rows, pair = stationary.shape[0], 2 if double else 1
    m, n = checks.free(stationary) // pair, checks.free(moving) // pair
    if rows != moving.shape[0]:
        raise RuleError(
            f"Matmul contraction dimension mismatch: stationary[0]={rows} != "
            f"moving[0]={moving.shape[0]}",
            rule="shape",
        )
    if rows > place.size[0]:
        raise RuleError(
            f"Matmul contraction dimension K exceeds the tile's {place.size[0]} rows, got {rows}",
            rule="matmul-size",
        )
    if m > place.size[1]:
        raise RuleError(
            "Matmul stationary free dimension M exceeds "
            f"gemm_stationary_fmax={place.size[1]}, got {m}: loop over columns",
            rule="matmul-size",
        )
    if n > MOVING_FMAX:
        raise RuleError(
            f"Matmul moving free dimension N exceeds gemm_moving_fmax={MOVING_FMAX}, got {n}: loop "
            "over columns",
            rule="matmul-size",
        )
    if dst.shape[0] != m or checks.free(dst) != n:
        raise RuleError(f"nc_matmul dst {dst.shape}: must be ({m}, {n})", rule="shape")
    return _Call(dst, stationary, moving, rows * pair, m, n)


def _sums(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a [K, M] and b [K, N] -> a.T @ b, summed in double precision and rounded once to fp32.

    On the array an element is the same whatever stands beside it. In BLAS the order of its sum
    depends on M, N and, on many CPUs, on its place: in double precision no order shows.
    """
    return (a.T.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)


def _multiply(call: _Call, accumulate: bool | None) -> None:
    dst = call.dst
    if dst.dtype != "float32":
        raise RuleError(
            f"nc_matmul dst is {dst.dtype}: PSUM accumulates in float32 on trn2; cast when copying "
            "the result out",
            rule="dtype",
        )
    add = adds_to(dst, accumulate)
    # double_row: the pair joins the partitions, in the same order in both operands.
    a = operands.rows(call.stationary, "nc_matmul stationary").reshape(call.k, call.m)
    b = operands.rows(call.moving, "nc_matmul moving").reshape(call.k, call.n)
    with np.errstate(all="ignore"):
        product = _sums(a, b).reshape(dst.shape)
        if add is not None:
            held = Place(dst).of(dst.storage.data, NUMPY["float32"])
            product = held + product if add.all() else np.where(add, held + product, product)
    store(dst, product, pe=True)


def _transpose(call: _Call, accumulate: bool | None) -> None:
    dst = call.dst
    if accumulate:
        raise RuleError("nc_matmul is_transpose with accumulate=True: bits do not add", "operand")
    if dst.dtype != call.stationary.dtype:
        raise RuleError(
            f"nc_matmul is_transpose dst is {dst.dtype}: must be {call.stationary.dtype}, the "
            "dtype of stationary",
            rule="dtype",
        )
    chooser = operands.rows(call.moving, "nc_matmul moving")
    if not (((chooser == 0) | (chooser == 1)).all() and (chooser.sum(axis=0) == 1).all()):
        raise RuleError(
            "nc_matmul is_transpose: moving must be an identity matrix (one 1 per column)",
            rule="operand",
        )
    every_second_byte("nc_matmul is_transpose", dst)
    bits = load(call.stationary, "nc_matmul stationary").reshape(call.k, call.m)
    store(dst, bits[chooser.argmax(axis=0)].T, pe=True)
