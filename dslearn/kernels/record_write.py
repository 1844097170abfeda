"""Cache records from values: blocks, scales and codes by fp32 and bit operations alone.

A code stays a small whole number in fp32 until one instruction narrows it to its byte, and e4m3 is
never a dtype here: trn2's ends at 240, these codes go as far as the caller says, 448 included.
P partitions, n blocks per partition, B values per block.
"""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl

from dslearn.formats.tables import E2M1_MAX, E4M3_NAN, E8M0_NAN, FP8_AMAX_FLOOR, RECORDS

MAGNITUDE, EXPONENT, MANTISSA = 0x7FFFFFFF, 0x7F800000, 0x007FFFFF
Format = tuple[int, float, float, float]  # mantissa bits, least normal, its steps, code bias
E4M3: Format = (3, 2.0**-6, 512.0, 968.0)
E2M1: Format = (1, 1.0, 2.0, 254.0)


def layout(kind: str, dim: int) -> tuple[int, int, int]:
    """Values per block, bytes of codes and bytes of scales of a record of `dim` values."""
    found = [row[1:4] for row in RECORDS if row[0] == kind and row[2] and not row[4]]
    assert found, "kind: window, compressed or index"
    bits, block, width = found[0]
    return block, dim * bits // 8, dim // block * width


def new(like: nl.NkiTensor, dtype: nl.DType) -> nl.NkiTensor:
    """A tile in SBUF of the shape of `like`."""
    return nl.ndarray(shape=like.shape, dtype=dtype, buffer=nl.sbuf)


def bitwise(
    data: nl.NkiTensor,
    op0: nl.NKIObject,
    number0: int,
    op1: nl.NKIObject = None,
    number1: int | None = None,
) -> nl.NkiTensor:
    """The bits of an fp32 or int32 tile through one or two bit operators, as int32."""
    out = new(data, nl.int32)
    nisa.tensor_scalar(
        dst=out, data=data.view(nl.int32), op0=op0, operand0=number0, op1=op1, operand1=number1
    )
    return out


def arithmetic(
    data: nl.NkiTensor, op0: nl.NKIObject, number0: float, op1: nl.NKIObject = None,
    number1: float | None = None,
) -> nl.NkiTensor:  # fmt: skip
    """A tile through one or two operators with numbers, as fp32."""
    out = new(data, nl.float32)
    nisa.tensor_scalar(dst=out, data=data, op0=op0, operand0=number0, op1=op1, operand1=number1)
    return out


def pair(a: nl.NkiTensor, b: nl.NkiTensor, op: nl.NKIObject) -> nl.NkiTensor:
    """a op b, element by element, as fp32."""
    out = new(a, nl.float32)
    nisa.tensor_tensor(dst=out, data1=a, data2=b, op=op)
    return out


def each(scale: nl.NkiTensor, block: int) -> nl.NkiTensor:
    """One number per block [P, n] seen by each of its values: a view [P, n, B]."""
    return scale.expand_dim(2).broadcast(2, block)


def nearest(y: nl.NkiTensor, kind: Format) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """Codes of magnitudes y, ties to the even one, and what they mean; both fp32 tiles.

    Adding and subtracting 1.5 · 2^(23 - m) times its power of two rounds a number to m bits. From
    the least normal number on, the code counts up with the bits; below, with the steps.
    """
    bits, least, steps, bias = kind
    power = bitwise(y, nl.bitwise_and, EXPONENT)
    magic = arithmetic(
        power.view(nl.float32), nl.maximum, least, nl.multiply, 1.5 * 2.0 ** (23 - bits)
    )
    rounded = pair(pair(y, magic, nl.add), magic, nl.subtract)
    large = arithmetic(rounded, nl.maximum, least)
    field = bitwise(large, nl.right_shift, 23 - bits)
    small = arithmetic(rounded, nl.minimum, least, nl.multiply, steps)
    code = new(y, nl.float32)
    nisa.scalar_tensor_tensor(
        dst=code, data=field, op0=nl.subtract, operand0=bias, op1=nl.add, operand1=small
    )
    return code, rounded


def _largest(size: nl.NkiTensor, floor: float) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """Largest magnitude of each block [P, n], at least `floor`, and which are not finite (uint8).

    A block with infinity or NaN becomes zeros: zero times either is NaN, and so is their sum.
    """
    lanes, count, block = size.shape
    nothing = arithmetic(size, nl.multiply, 0.0)
    doubt = nl.ndarray(shape=(lanes, count), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=doubt, op=nl.add, data=nothing, axis=2)
    bad = new(doubt, nl.uint8)
    nisa.tensor_tensor(dst=bad, data1=doubt, data2=doubt, op=nl.not_equal)
    nisa.tensor_copy_predicated(dst=size, src=0.0, predicate=each(bad, block))
    amax = new(doubt, nl.float32)
    nisa.tensor_reduce(dst=amax, op=nl.maximum, data=size, axis=2)
    return arithmetic(amax, nl.maximum, floor), bad


def _power(value: nl.NkiTensor) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """ue8m0 byte (int32) of the smallest power of two >= value, and one over that power, fp32."""
    rest = bitwise(value, nl.bitwise_and, MANTISSA)
    byte = new(value, nl.int32)
    nisa.scalar_tensor_tensor(
        dst=byte, data=rest, op0=nl.minimum, operand0=1.0,
        op1=nl.add, operand1=bitwise(value, nl.right_shift, 23),
    )  # fmt: skip
    field = new(value, nl.int32)
    nisa.tensor_scalar(dst=field, data=byte, op0=nl.subtract, operand0=254.0, reverse0=True)
    return byte, bitwise(field, nl.left_shift, 23).view(nl.float32)


def _sixth(amax: nl.NkiTensor) -> nl.NkiTensor:
    """amax / 6 rounded once: a product with 1/6, corrected by what it leaves over, exactly."""
    first = arithmetic(amax, nl.multiply, 1.0 / E2M1_MAX)
    rest = amax
    for part in (-4.0, -2.0):
        less = new(amax, nl.float32)
        nisa.scalar_tensor_tensor(
            dst=less, data=first, op0=nl.multiply, operand0=part, op1=nl.add, operand1=rest
        )
        rest = less
    out = new(amax, nl.float32)
    nisa.scalar_tensor_tensor(
        dst=out, data=rest, op0=nl.multiply, operand0=1.0 / E2M1_MAX, op1=nl.add, operand1=first
    )
    return out


def _divided(size: nl.NkiTensor, scale: nl.NkiTensor) -> nl.NkiTensor:
    """size / scale [P, n, B] for scales of four bits, close enough that no tie is missed.

    There is no division: the quotient's first 16 bits, whose product with four more is exact, then
    what is left over times the reciprocal.
    """
    block = size.shape[2]
    inverse = new(scale, nl.float32)
    nisa.reciprocal(dst=inverse, data=scale)
    guess = pair(size, each(inverse, block), nl.multiply)
    head = bitwise(guess, nl.bitwise_and, 0x7FFFFF00).view(nl.float32)
    rest = pair(size, pair(head, each(scale, block), nl.multiply), nl.subtract)
    return pair(head, pair(rest, each(inverse, block), nl.multiply), nl.add)


def encoded(x: nl.NkiTensor, kind: str, fp8_max: int) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """Codes uint8 [P, bytes] and scales uint8 [P, n] of values x fp32 [P, n, B], by record kind."""
    lanes, count, block = x.shape
    size = bitwise(x, nl.bitwise_and, MAGNITUDE).view(nl.float32)
    scales = nl.ndarray(shape=(lanes, count), dtype=nl.uint8, buffer=nl.sbuf)
    floor = (
        FP8_AMAX_FLOOR
        if kind == "window"
        else E2M1_MAX * 2.0 ** (-9 if kind == "compressed" else -126)
    )
    amax, bad = _largest(size, floor)
    most = float(fp8_max if kind == "window" else E2M1_MAX)
    if kind == "compressed":
        byte, scale = nearest(arithmetic(_sixth(amax), nl.minimum, float(fp8_max)), E4M3)
        ratio = _divided(size, scale)
    else:
        byte, inverse = _power(arithmetic(amax, nl.multiply, 1.0 / most))
        ratio = pair(size, each(inverse, block), nl.multiply)
    nisa.tensor_copy(dst=scales, src=byte)
    nan = E4M3_NAN if kind == "compressed" else E8M0_NAN
    nisa.tensor_copy_predicated(dst=scales, src=nan, predicate=bad)
    code, _ = nearest(arithmetic(ratio, nl.minimum, most), E4M3 if kind == "window" else E2M1)
    return _signed(code, x, kind == "window"), scales


def faked(x: nl.NkiTensor) -> nl.NkiTensor:
    """What the "index" record of x fp32 [P, n, B] would decode to, for finite x; fp32."""
    size = bitwise(x, nl.bitwise_and, MAGNITUDE).view(nl.float32)
    amax, _ = _largest(size, E2M1_MAX * 2.0**-126)
    byte, inverse = _power(arithmetic(amax, nl.multiply, 1.0 / E2M1_MAX))
    ratio = pair(size, each(inverse, x.shape[2]), nl.multiply)
    _, rounded = nearest(arithmetic(ratio, nl.minimum, float(E2M1_MAX)), E2M1)
    power = bitwise(byte, nl.left_shift, 23).view(nl.float32)
    value = pair(rounded, each(power, x.shape[2]), nl.multiply)
    out = new(x, nl.int32)
    nisa.tensor_tensor(
        dst=out,
        data1=value.view(nl.int32),
        data2=bitwise(x, nl.bitwise_and, -0x80000000),
        op=nl.bitwise_or,
    )
    return out.view(nl.float32)


def _signed(code: nl.NkiTensor, x: nl.NkiTensor, whole: bool) -> nl.NkiTensor:
    """Codes with the signs of x, narrowed once; in pairs (first in the low half) if not `whole`."""
    lanes, count, block = x.shape
    sign = bitwise(x, nl.right_shift, 24 if whole else 28, nl.bitwise_and, 0x80 if whole else 8)
    flat = (lanes, count * block)
    if whole:
        out = nl.ndarray(shape=flat, dtype=nl.uint8, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=out.reshape(x.shape), data1=code, data2=sign, op=nl.add)
        return out
    full = pair(code, sign, nl.add).reshape(flat)
    out = nl.ndarray(shape=(lanes, count * block // 2), dtype=nl.uint8, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(
        dst=out, data=full[:, 1::2], op0=nl.multiply, operand0=16.0,
        op1=nl.add, operand1=full[:, 0::2],
    )  # fmt: skip
    return out
