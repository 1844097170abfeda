"""What compress_pool computes with: columns of whole numbers, rows by number, pooling, the norm.

P lanes; a column is a tile [P, 1].
"""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl


def new_tile(rows: int, width: int, dtype: nl.DType) -> nl.NkiTensor:
    """A tile in SBUF."""
    return nl.ndarray(shape=(rows, width), dtype=dtype, buffer=nl.sbuf)


def combined(
    data: nl.NkiTensor, op: nl.NKIObject, other: nl.NkiTensor, dtype: nl.DType
) -> nl.NkiTensor:
    """data op other for columns [P, 1]."""
    out = new_tile(data.shape[0], 1, dtype)
    nisa.tensor_tensor(dst=out, data1=data, data2=other, op=op)
    return out


def test(data: nl.NkiTensor, op: nl.NKIObject, number: float) -> nl.NkiTensor:
    """Where a column compares so with a number: uint8 [P, 1]."""
    out = new_tile(data.shape[0], 1, nl.uint8)
    nisa.tensor_scalar(dst=out, data=data, op0=op, operand0=number)
    return out


def odd_of(data: nl.NkiTensor) -> nl.NkiTensor:
    """1 where an integer of a column is odd: int32 [P, 1]."""
    out = new_tile(data.shape[0], 1, nl.int32)
    nisa.tensor_scalar(dst=out, data=data, op0=nl.bitwise_and, operand0=1)
    return out


def rows_of(source: nl.NkiTensor, index: nl.NkiTensor) -> nl.NkiTensor:
    """Rows index [P, 1] of source [R, D] in HBM, the nearest for an index outside."""
    width = source.shape[1]
    inside = new_tile(index.shape[0], 1, nl.int32)
    nisa.tensor_scalar(
        dst=inside,
        data=index,
        op0=nl.maximum,
        operand0=0.0,
        op1=nl.minimum,
        operand1=float(source.shape[0] - 1),
    )
    tile = new_tile(index.shape[0], width, source.dtype)
    pattern = [[width, index.shape[0]], [1, width]]
    nisa.dma_copy(dst=tile, src=source.ap(pattern=pattern, offset=0, vector_offset=inside))
    return tile


def replace(tile: nl.NkiTensor, other: nl.NkiTensor, where: nl.NkiTensor) -> None:
    """Lanes of `tile` [P, D] where the column `where` is not 0 become those of `other`."""
    every = where.broadcast(1, tile.shape[1])
    nisa.tensor_copy_predicated(dst=tile, src=other, predicate=every)


def pooled(u: list[nl.NkiTensor], g: list[nl.NkiTensor], dtype: nl.DType) -> nl.NkiTensor:
    """Softmax over two tiles g, channel by channel, times u, summed: [P, D].

    A softmax over two is a sigmoid of their difference, forwards and back.
    """
    rows, width = u[0].shape
    apart = new_tile(rows, width, nl.float32)
    nisa.tensor_tensor(dst=apart, data1=g[0], data2=g[1], op=nl.subtract)
    for i in range(2):
        nisa.activation(dst=g[i], op=nl.sigmoid, data=apart, scale=-1.0 if i else 1.0)
        nisa.tensor_tensor(dst=u[i], data1=u[i], data2=g[i], op=nl.multiply)
    out = new_tile(rows, width, dtype)
    nisa.tensor_tensor(dst=out, data1=u[0], data2=u[1], op=nl.add)
    return out


def normed(x: nl.NkiTensor, weight: nl.NkiTensor, eps: float, dtype: nl.DType) -> nl.NkiTensor:
    """x [P, D] over its root mean square, times weight [1, D] of HBM, rounded once to `dtype`."""
    rows, width = x.shape
    gain = new_tile(rows, width, weight.dtype)
    nisa.dma_copy(dst=gain, src=weight.broadcast(0, rows))
    squares = new_tile(rows, width, nl.float32)
    total = new_tile(rows, 1, nl.float32)
    nisa.activation(
        dst=squares,
        op=nl.square,
        data=x,
        reduce_op=nl.add,
        reduce_res=total,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )
    root = new_tile(rows, 1, nl.float32)
    nisa.activation(dst=root, op=nl.rsqrt, data=total, bias=eps, scale=1.0 / width)
    out = new_tile(rows, width, dtype)
    nisa.scalar_tensor_tensor(
        dst=out, data=x, op0=nl.multiply, operand0=root, op1=nl.multiply, operand1=gain
    )
    return out
