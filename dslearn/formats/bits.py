"""fp32 bit tricks that the block codecs share; everything is exact, nothing calls log2.

Legend: K row length, B block length; blocks are [..., K/B, B], scales [..., K/B, 1].
A power of two is carried as the bit pattern of the fp32 number (int32). A block that holds NaN or
infinity gets the pattern of +inf, which makes the whole block NaN whichever way it is applied.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from dslearn.errors import FormatError
from dslearn.formats import tables


@cache
def float_bits(value: float) -> int:
    """Bit pattern of a non-negative number rounded to fp32."""
    return int(struct.unpack("<i", struct.pack("<f", value))[0])


MAGNITUDE, EXPONENT, MANTISSA = tables.FP32_MAGNITUDE, tables.FP32_INF, tables.FP32_MANTISSA
ONE = torch.tensor(float_bits(1.0), dtype=torch.int32)
_HELD = {n: torch.tensor(n, dtype=torch.int32) for n in (MAGNITUDE, EXPONENT, MANTISSA)}


def mask(number: int, x: Tensor) -> Tensor | int:
    """One of the three as an operand beside x: in memory of the CPU as a tensor.

    With a number every bitwise call would build that tensor again; elsewhere, and in graphs, it
    would be one more tensor to bring along.
    """
    return _HELD[number] if type(x) is Tensor and x.is_cpu else number


def split(x: Tensor, block: int) -> Tensor:
    """x [..., K] (fp32 or bf16) as fp32 [..., K/block, block].

    Raises:
        FormatError: another dtype, or a K that `block` does not divide.
    """
    if x.dtype is not torch.float32:
        if x.dtype is not torch.bfloat16:
            raise FormatError(
                f"cannot quantise {x.dtype}: the quantisers take float32 or bfloat16; "
                "convert first, so that the rounding is yours"
            )
        x = x.float()
    return x.reshape(x.shape[:-1] + (count_blocks(x.shape, block), block))


def count_blocks(shape: Sequence[int], block: int) -> int:
    """Blocks in the last dimension of a shape.

    Raises:
        FormatError: `block` does not divide it.
    """
    count, rest = divmod(shape[-1], block)
    if rest:
        raise FormatError(
            f"row of {shape[-1]} values cut in blocks of {block}: {rest} are left over; "
            f"the row length must be a multiple of {block}"
        )
    return count


def amax_bits(blocks: Tensor, floor_bits: int) -> Tensor:
    """Largest magnitude of each block, at least the floor, as bits [..., K/B, 1].

    Taken on integers: the order of the patterns is the order of the magnitudes, and NaN, which
    sorts above infinity, is cut down to infinity.
    """
    magnitudes = torch.bitwise_and(blocks.view(torch.int32), mask(MAGNITUDE, blocks))
    return magnitudes.amax(-1, keepdim=True).clamp_(floor_bits, tables.FP32_INF)


def ceil_power(value: Tensor) -> Tensor:
    """Bits of the smallest power of two >= value (normal, positive fp32); changes `value`.

    Adding all ones to the mantissa carries into the exponent unless the mantissa is zero.
    """
    bits = value.view(torch.int32).add_(mask(MANTISSA, value))
    return bits.bitwise_and_(mask(EXPONENT, value))


def as_bytes(tensor: Tensor, what: str, *others: torch.dtype) -> Tensor:
    """The bytes of a tensor as uint8, if its dtype is uint8 or one of `others` (1-byte types).

    Raises:
        FormatError: any other dtype. A scale byte copied into a wider or a float tensor has become
            a number, and its exponent meaning is lost.
    """
    if tensor.dtype is torch.uint8:
        return tensor
    if tensor.dtype in others:
        return tensor.view(torch.uint8)
    allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in (torch.uint8, *others))
    raise FormatError(
        f"{what} given as {tensor.dtype}: bytes are needed ({allowed}); "
        "pass the tensor as it was stored, without conversion"
    )


def lookup(table: Tensor, codes: Tensor) -> Tensor:
    """table [n] taken at codes (uint8, any shape) -> the shape of codes."""
    return table.index_select(0, codes.int().reshape(-1)).view(codes.shape)
