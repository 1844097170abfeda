"""fp4 weights where a kernel wants them: widened to fp8, or packed anew.

fp4 codes with one scale per 32 inputs become e4m3 codes with one scale per output, exactly, when
the scales of an output are at most 2^13 apart: e2m1 numbers times 2^-8 to 2^5 are e4m3 numbers up
to 192. That doubles the bytes in HBM and leaves nothing to decode. Otherwise the codes stay packed,
in words whose four bytes are four inputs of one block.

Legend: N outputs, K inputs; T tiles of 128 outputs (an even number), J steps of 128 inputs, S runs
of 512 inputs, Q sets of 128 blocks of 32 inputs. Padding is code 0 with scale byte 127.
Source: docs/reference/formats.md, "Device placement".
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from dslearn.errors import FormatError
from dslearn.formats import e2m1, tables
from dslearn.formats.place import LANES, ONE, check_scales, pad, place_codes, tiles_of

BLOCK, RUN = tables.EXPERT_BLOCK, 512
PACKED_LARGEST = 240  # a kernel multiplies the scale of packed codes by 2^14, in fp32
SPREAD, BELOW, ABOVE = 13, 8, 5  # binades that e4m3 leaves to scales: 2^-8 to 2^5


def spread(packed: Tensor, scale: Tensor) -> int:
    """Largest number of binades between two scales of one output; blocks of zeros do not count.

    Args:
        packed: uint8 or int8 [N, K/2].
        scale: uint8 or float8_e8m0fnu [N, K/32].
    """
    largest, smallest = _range(*_checked(packed, scale))
    return int((largest - smallest).max().clamp(min=0))


def widen(packed: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """e4m3 codes and one scale per output with the same values.

    Args:
        packed: uint8 or int8 [N, K/2], two e2m1 codes per byte, the even input in the low half.
        scale: uint8 or float8_e8m0fnu [N, K/32], bytes 1 to 254.

    Returns:
        codes: uint8 [N, K], at most 192 in magnitude.
        byte: uint8 [N]; weight = e4m3(code) * 2^(byte - 127).

    Raises:
        FormatError: scales of an output more than 2^13 apart (`spread`), or shapes that do not fit.
    """
    codes, byte = _checked(packed, scale)
    largest, smallest = _range(codes, byte)
    far = int((largest - smallest).argmax())
    if int(largest[far] - smallest[far]) > SPREAD:
        raise FormatError(
            f"scales of output {far} are 2^{int(largest[far] - smallest[far])} apart: e4m3 holds "
            f"2^{SPREAD}; keep this weight packed (place_fp4)"
        )
    # Zeros fit any scale. The byte stays a normal exponent: at least 1.
    base = (largest - ABOVE).clamp(1, 254)
    place = (byte - base[:, None] + BELOW).clamp(0, SPREAD)
    index = place.repeat_interleave(BLOCK, 1) * 16 + codes
    return _table()[index.reshape(-1)].view(codes.shape), base.to(torch.uint8)


def place_widened(packed: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """`widen`, as a kernel reads it: weight [128, T, J, 128], power [128, T].

    Raises:
        FormatError: as `widen`.
    """
    codes, byte = widen(packed, scale)
    whole = pad(byte[None], 1, tiles_of(len(byte)) * LANES, ONE)
    return place_codes(codes), whole.view(-1, LANES).T.contiguous()


def place_fp4(packed: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """A packed weight in words of eight codes, as a kernel reads it.

    Args:
        packed: uint8 or int8 [N, K/2], two e2m1 codes per byte, the even input in the low half.
        scale: uint8 or float8_e8m0fnu [N, K/32], bytes 1 to 240.

    Returns:
        words: uint8 [128, T, S, 64, 4]; byte [p, t, s, c, i] holds input k = 512 s + 4 p + i of two
            outputs: 128 t + c in bits 7 (sign) and 3 to 1, which masked is an e5m2 code of the
            value times 2^-14, and 128 t + 64 + c in bits 0 (sign) and 6 to 4.
        power: uint8 [128, Q, 128 T]; [g, q, n] is the scale byte of block 128 q + g of output n.

    Raises:
        FormatError: scale bytes 0 or above 240, or shapes that do not fit.
    """
    codes, byte = _checked(packed, scale)
    if byte.numel() and int(byte.max()) > PACKED_LARGEST:
        raise FormatError(
            f"scale byte {int(byte.max())}: packed weights are decoded with scales up to byte "
            f"{PACKED_LARGEST} (2^113); is the file damaged?"
        )
    tiles, runs = tiles_of(len(codes)), -(-codes.shape[1] // RUN)
    sets = -(-runs * RUN // BLOCK // LANES)
    whole = pad(codes, tiles * LANES, runs * RUN, 0)
    halves = whole.view(tiles, 2, LANES // 2, runs, LANES, 4).permute(1, 4, 0, 3, 2, 5)
    a, b = halves[0], halves[1]
    words = (a & 8) << 4 | (a & 7) << 1 | (b & 8) >> 3 | (b & 7) << 4
    grid = pad(byte.to(torch.uint8), tiles * LANES, sets * LANES, ONE)
    return words.contiguous(), grid.view(-1, sets, LANES).permute(2, 1, 0).contiguous()


def unplace_fp4(words: Tensor, power: Tensor, outputs: int, inputs: int) -> tuple[Tensor, Tensor]:
    """The inverse of `place_fp4`: packed codes [N, K/2] and scale bytes [N, K/32]."""
    a = words >> 4 & 8 | words >> 1 & 7
    b = words << 3 & 8 | words >> 4 & 7
    codes = torch.stack([a, b]).permute(2, 0, 4, 3, 1, 5)
    rows = codes.reshape(-1, words.shape[2] * RUN)[:outputs, :inputs]
    grid = power.permute(2, 1, 0).reshape(power.shape[2], -1)
    return e2m1.pack(rows), grid[:outputs, : inputs // BLOCK]


def _checked(packed: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Codes uint8 [N, K] and scale bytes int32 [N, K/32].

    Raises:
        FormatError: shapes that do not fit, or scale bytes 0 or 255.
    """
    codes, byte = e2m1.unpack(packed), check_scales(scale)
    if tuple(byte.shape) != (codes.shape[0], codes.shape[1] // BLOCK) or codes.shape[1] % BLOCK:
        raise FormatError(
            f"packed weight {tuple(packed.shape)} with scales {tuple(scale.shape)}: must be "
            f"[N, K/2] and [N, K/{BLOCK}]"
        )
    return codes, byte.int()


def _range(codes: Tensor, byte: Tensor) -> tuple[Tensor, Tensor]:
    """Largest and smallest scale byte of each output, of blocks that are not all zeros."""
    used = (codes & 7).view(len(codes), -1, BLOCK).amax(-1) > 0
    largest = torch.where(used, byte, 0).amax(1)
    smallest = torch.where(used, byte, 255).amin(1)
    none = largest < smallest
    return largest.masked_fill(none, ONE), smallest.masked_fill(none, ONE)


@cache
def _table() -> Tensor:
    """uint8 [14 * 16]: the e4m3 code of e2m1 code c times 2^(place - 8), at 16 place + c."""
    code_of = {steps: code for code, steps in enumerate(tables.E4M3_STEPS[:127])}
    table = []
    for place in range(SPREAD + 1):
        codes = [code_of[half << place] for half in tables.E2M1_HALVES]
        table += codes + [code | 0x80 for code in codes]
    return torch.tensor(table, dtype=torch.uint8)
