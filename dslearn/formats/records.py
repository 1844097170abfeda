"""Cache records: one token's entry as the bytes a cache holds.

Legend: D values of an entry, S bytes of its record (`Record.stride`), [..., D] <-> [..., S].
Every layout is "codes, then scales"; sizes follow from `tables.RECORDS` and nowhere else.
Source: docs/reference/formats.md, "Cache records".

kind        record                                                   S(D)          released
window      e4m3 each, one ue8m0 per 32                              D + D/32      512 -> 528
compressed  e2m1 pairs, one e4m3 scale per 16                        D/2 + D/16    512 -> 288
index       e2m1 pairs, one ue8m0 per 32                             D/2 + D/32    128 -> 68
index_fp8   e4m3 each, one fp32 scale (a power of two)               D + 4         128 -> 132
v4          e4m3 but the last 64, those as bf16; one ue8m0 per 64,   D + 64 + 8    512 -> 584
            the scale part padded to a multiple of 8 bytes
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from dslearn.errors import FormatError
from dslearn.formats import e2m1, e4m3, rows, tables, ue8m0

Kind = Literal["window", "compressed", "index", "index_fp8", "v4"]


class Layout(NamedTuple):
    """One row of `tables.RECORDS`, by name."""

    bits: int
    block: int
    scale_bytes: int
    plain: int
    align: int


LAYOUTS = {kind: Layout(*numbers) for kind, *numbers in tables.RECORDS}


@dataclass(frozen=True)
class Record:
    """How one cache entry becomes bytes.

    Args:
        kind: one of the table above.
        dim: values of an entry (D), including rotary dimensions.
        fp8_max: largest e4m3 magnitude to write: 448, 240 or 224. It bounds codes of the fp8
            kinds and the scale of "compressed".

    Raises:
        FormatError: an unknown kind, a dim that the blocks do not divide, a wrong fp8_max.
    """

    kind: Kind
    dim: int
    fp8_max: int = 448

    def __post_init__(self) -> None:
        if self.kind not in LAYOUTS:
            known = ", ".join(repr(kind) for kind in LAYOUTS)
            raise FormatError(f"record kind {self.kind!r}: must be one of {known}")
        e4m3.check_max(self.fp8_max)
        layout = LAYOUTS[self.kind]
        block = layout.block or 1
        coded = self.dim - layout.plain
        if coded <= 0 or coded % block:
            rest = f" after the last {layout.plain} values" if layout.plain else ""
            raise FormatError(
                f"{self.kind!r} record of {self.dim} values: one scale covers {block} of them"
                f"{rest}, so {coded} must be a positive multiple of {block}"
            )

    @property
    def layout(self) -> Layout:
        """Bits, block and scale bytes of this kind."""
        return LAYOUTS[self.kind]

    @cached_property
    def scale_width(self) -> int:
        """Bytes of the scale part, with its padding."""
        layout = self.layout
        count = (self.dim - layout.plain) // layout.block if layout.block else 1
        return -(-count * layout.scale_bytes // layout.align) * layout.align

    @cached_property
    def data_width(self) -> int:
        """Bytes before the scale part."""
        layout = self.layout
        return (self.dim - layout.plain) * layout.bits // 8 + 2 * layout.plain

    @cached_property
    def stride(self) -> int:
        """Bytes of one record."""
        return self.data_width + self.scale_width

    def pack(self, x: Tensor) -> Tensor:
        """Entries fp32 or bf16 [..., D] to uint8 [..., S].

        An entry with NaN or infinity in a block gets a NaN scale there.

        Raises:
            FormatError: another width than D, or another dtype.
        """
        if x.shape[-1] != self.dim:
            raise FormatError(
                f"entries of {x.shape[-1]} values for a {self.kind!r} record of {self.dim}"
            )
        if self.kind == "window":
            return torch.cat(rows.quantize_fp8(x, 32, self.fp8_max), -1)
        if self.kind == "compressed":
            return torch.cat(rows.quantize_fp4(x, 16, "e4m3", self.fp8_max), -1)
        if self.kind == "index":
            return torch.cat(rows.quantize_fp4(x, 32), -1)
        if self.kind == "index_fp8":
            codes, byte = rows.quantize_fp8(x, self.dim, self.fp8_max)
            return torch.cat((codes, ue8m0.decode(byte).view(torch.uint8)), -1)
        return self._pack_v4(x)

    def unpack(self, raw: Tensor) -> Tensor:
        """Records uint8 [..., S] to fp32 [..., D].

        Raises:
            FormatError: another width than S, or another dtype.
        """
        if raw.dtype is not torch.uint8 or raw.shape[-1] != self.stride:
            raise FormatError(
                f"{raw.dtype} rows of {raw.shape[-1]} for a {self.kind!r} record of {self.dim} "
                f"values: must be uint8 rows of {self.stride}"
            )
        if self.kind == "index_fp8":
            scale = raw[..., self.dim :].reshape(-1).view(torch.float32)
            return e4m3.decode(raw[..., : self.dim]) * scale.view(raw.shape[:-1] + (1,))
        if self.kind == "v4":
            return self._unpack_v4(raw)
        return self._unpack_table(raw)

    def _unpack_table(self, raw: Tensor) -> Tensor:
        """One gather decodes codes and scales alike: scales look in the table's second half."""
        count, data = self.scale_width, self.data_width
        index = raw + _second_half(data, count, raw.device)
        flat = _table(self.kind, raw.device).index_select(0, index.view(-1)).view(torch.float32)
        both = flat.view(raw.shape + (8 // self.layout.bits,))
        codes = both[..., :data, :].reshape(raw.shape[:-1] + (count, self.dim // count))
        return (codes * both[..., data:, :1]).view(raw.shape[:-1] + (self.dim,))

    def _pack_v4(self, x: Tensor) -> Tensor:
        """e4m3 part, bf16 part, scales, zero padding."""
        layout, coded = self.layout, self.dim - self.layout.plain
        codes, scale = rows.quantize_fp8(x[..., :coded], layout.block, self.fp8_max)
        tail = x[..., coded:].to(torch.bfloat16).reshape(-1).view(torch.uint8)
        tail = tail.view(x.shape[:-1] + (2 * layout.plain,))
        padding = scale.new_zeros(scale.shape[:-1] + (self.scale_width - scale.shape[-1],))
        return torch.cat((codes, tail, scale, padding), -1)

    def _unpack_v4(self, raw: Tensor) -> Tensor:
        """The inverse of `_pack_v4`; the padding is ignored."""
        coded, count = self.dim - self.layout.plain, (self.dim - self.layout.plain) // 64
        scale = raw[..., self.data_width : self.data_width + count]
        head = rows.dequantize_fp8(raw[..., :coded], scale)
        tail = raw[..., coded : self.data_width].reshape(-1).view(torch.bfloat16).float()
        return torch.cat((head, tail.view(raw.shape[:-1] + (self.layout.plain,))), -1)


@cache
def _second_half(data: int, count: int, device: torch.device) -> Tensor:
    """int32 [data + count]: 0 under the codes, 256 under the scales."""
    part = torch.arange(data + count, device=device) >= data
    return part.int() * 256


@cache
def _table(kind: Kind, device: torch.device) -> Tensor:
    """512 entries: what a code byte means, then what a scale byte means (both halves of a pair)."""
    if kind == "window":
        return torch.cat((e4m3.values("ocp", device), ue8m0.values(device)))
    e4m3_scale = kind == "compressed"
    scale = e4m3.values("ocp", device) if e4m3_scale else ue8m0.values(device)
    twice = torch.stack((scale, scale), -1).view(torch.int64).squeeze(-1)
    return torch.cat((e2m1.pairs(device), twice))
