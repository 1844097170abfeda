"""The k largest of a row by searching for the k-th: bit by bit, over all 16 lanes of the row.

A row of n values lies in 16 lanes of n / 16. Values become whole numbers of the same order, in two
halves of 16 bits that fp32 holds exactly; one comparison and sum per lane, and one product with
ones across the lanes, count what is not below a candidate.
P lanes, 16 for each row; w values per lane; a column is a tile [P, 1].
"""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl

GROUP = 16
HALF = 16  # bits of each half of a value


def _like(tile: nl.NkiTensor, dtype: nl.DType) -> nl.NkiTensor:
    return nl.ndarray(shape=tile.shape, dtype=dtype, buffer=nl.sbuf)


def _pair(a: nl.NkiTensor, b: nl.NkiTensor, op: nl.NKIObject) -> nl.NkiTensor:
    out = _like(a, nl.float32)
    nisa.tensor_tensor(dst=out, data1=a, data2=b, op=op)
    return out


def _scalar(
    data: nl.NkiTensor, op0: nl.NKIObject, operand0: object, op1: nl.NKIObject = None,
    operand1: object = None,
) -> nl.NkiTensor:  # fmt: skip
    out = _like(data, nl.float32)
    nisa.tensor_scalar(dst=out, data=data, op0=op0, operand0=operand0, op1=op1, operand1=operand1)
    return out


def _halves(values: nl.NkiTensor) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """Upper and lower 16 bits of whole numbers in the order of the values; both fp32 [P, w].

    The bits of positive numbers count upwards, those of negative ones downwards. Both zeros are
    one number.
    """
    bits = _scalar(values, nl.add, 0.0).view(nl.int32)
    parts = []
    for op, number in ((nl.right_shift, HALF), (nl.bitwise_and, 0xFFFF), (nl.right_shift, 31)):
        part = _like(values, nl.int32)
        nisa.tensor_scalar(dst=part, data=bits, op0=op, operand0=number)
        parts.append(part)
    upper, lower, sign = parts
    turn = _scalar(sign, nl.multiply, -2.0, nl.add, 1.0)
    return (
        _pair(_pair(upper, turn, nl.multiply),
              _scalar(sign, nl.multiply, 32767.0, nl.add, 32768.0), nl.add),
        _pair(_pair(lower, turn, nl.multiply), _scalar(sign, nl.multiply, 65535.0), nl.add),
    )  # fmt: skip


def _together(lanes: int) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """[P, P] ones: between lanes of one row; and those from a lane to a later one."""
    identity = nl.shared_identity_matrix(n=128, dtype=nl.float32)
    groups = lanes // GROUP
    group = nl.ndarray(shape=(lanes, groups), dtype=nl.float32, buffer=nl.sbuf)
    some = identity[0:lanes, 0:lanes].reshape((lanes, groups, GROUP))
    nisa.tensor_reduce(dst=group, op=nl.add, data=some, axis=2)
    same = nl.ndarray(shape=(lanes, groups, GROUP), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=same, src=group.expand_dim(2).broadcast(2, GROUP))
    same = same.reshape((lanes, lanes))
    later = _like(same, nl.float32)
    nisa.affine_select(
        dst=later, pattern=[[1, lanes]], channel_multiplier=-1, on_true_tile=same,
        on_false_value=0.0, cmp_op=nl.greater,
    )  # fmt: skip
    return same, later


def _summed(columns: nl.NkiTensor, ones: nl.NkiTensor) -> nl.NkiTensor:
    """A column summed over the lanes that `ones` joins to each: fp32 in PSUM."""
    out = nl.ndarray(shape=columns.shape, dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=out, stationary=ones, moving=columns, accumulate=False)
    return out


def _counted(
    data: nl.NkiTensor, op: nl.NKIObject, bound: nl.NkiTensor, ones: nl.NkiTensor
) -> nl.NkiTensor:
    """How many values of a row compare so with its bound, a column in PSUM, in all its lanes."""
    column = _like(bound, nl.float32)
    nisa.tensor_scalar_reduce(
        dst=_like(data, nl.float32), data=data, op0=op, operand0=bound, reduce_op=nl.add,
        reduce_res=column,
    )  # fmt: skip
    return _summed(column, ones)


def _searched(
    data: nl.NkiTensor, bits: int, count: nl.NkiTensor, ones: nl.NkiTensor
) -> nl.NkiTensor:
    """The largest whole number that at least `count` values of the row are not below; a column."""
    found = _like(count, nl.float32)
    nisa.memset(dst=found, value=0.0)
    for i in range(bits):
        bit = 2.0 ** (bits - 1 - i)
        candidate = _scalar(found, nl.add, bit)
        enough = _like(count, nl.float32)
        nisa.tensor_scalar(
            dst=enough, data=_counted(data, nl.greater_equal, candidate, ones),
            op0=nl.greater_equal, operand0=count, op1=nl.multiply, operand1=bit,
        )  # fmt: skip
        found = _pair(found, enough, nl.add)
    return found


def largest(values: nl.NkiTensor, k: int) -> nl.NkiTensor:
    """1.0 where one of the k largest of its row lies, the first of equal ones; [P, w].

    Args:
        values: fp32 [P, w] in SBUF, no NaN; P a multiple of 16, k at most 16 w.
        k: how many.
    """
    lanes = values.shape[0]
    ones, later = _together(lanes)
    wanted = nl.ndarray(shape=(lanes, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=wanted, value=float(k))
    upper, lower = _halves(values)
    bound = _searched(upper, HALF, wanted, ones)
    above = _scalar(upper, nl.greater, bound)
    left = _pair(wanted, _counted(upper, nl.greater, bound, ones), nl.subtract)
    # Values with the bound's upper half compete with their lower one, from 1 on; others have 0.
    rest = _pair(_scalar(upper, nl.equal, bound), _scalar(lower, nl.add, 1.0), nl.multiply)
    second = _searched(rest, HALF + 1, left, ones)
    above = _pair(above, _scalar(rest, nl.greater, second), nl.add)
    left = _pair(left, _counted(rest, nl.greater, second, ones), nl.subtract)
    equal = _scalar(rest, nl.equal, second)
    place = _like(values, nl.float32)
    always = _like(values, nl.float32)
    nisa.memset(dst=always, value=1.0)
    nisa.tensor_tensor_scan(
        dst=place, data0=always, data1=equal, initial=0.0, op0=nl.multiply, op1=nl.add
    )
    total = place[:, values.shape[1] - 1 : values.shape[1]]
    before = _like(wanted, nl.float32)
    nisa.tensor_copy(dst=before, src=_summed(total, later))
    left = _pair(left, before, nl.subtract)
    first = _pair(_scalar(place, nl.less_equal, left), equal, nl.multiply)
    return _pair(above, first, nl.add)
