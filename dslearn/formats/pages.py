"""Cache pages: where the records of consecutive tokens lie inside one block of a paged cache.

Legend: N tokens of a page, S bytes of a record, P bytes of a page.
"interleaved": record after record. "split": the data parts of all tokens, then all scale parts.
Pages are padded to a multiple that the table gives (64 V4 tokens: 37,440 bytes, not 37,376).
Source: docs/reference/formats.md, "Pages".
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from dslearn.errors import FormatError
from dslearn.formats import tables
from dslearn.formats.records import Record

PageLayout = Literal["split", "interleaved"]
_ALIGN = {(kind, layout): align for kind, layout, align in tables.PAGES}


def page_bytes(record: Record, tokens: int, layout: PageLayout = "split") -> int:
    """Bytes of a page of `tokens` records (P), with padding.

    Raises:
        FormatError: a layout that engines do not use for this kind.
    """
    align = _ALIGN.get((record.kind, layout))
    if align is None:
        known = sorted(name for kind, name in _ALIGN if kind == record.kind)
        raise FormatError(f"{layout!r} page of {record.kind!r} records: must be {known}")
    return -(-tokens * record.stride // align) * align


def to_page(records: Tensor, record: Record, layout: PageLayout = "split") -> Tensor:
    """Records uint8 [N, S] to one page uint8 [P]; the padding is zero.

    Raises:
        FormatError: rows that are not records of this kind, or an unknown layout.
    """
    size = page_bytes(record, len(records), layout)
    if records.dtype is not torch.uint8 or records.shape[1:] != (record.stride,):
        raise FormatError(
            f"{records.dtype} {tuple(records.shape)} for a page of {record.kind!r} records: "
            f"must be uint8 [tokens, {record.stride}]"
        )
    page = records.new_zeros(size)
    cut = record.data_width
    parts = [records] if layout == "interleaved" else [records[:, :cut], records[:, cut:]]
    page[: records.numel()] = torch.cat([part.reshape(-1) for part in parts])
    return page


def from_page(page: Tensor, record: Record, tokens: int, layout: PageLayout = "split") -> Tensor:
    """The inverse of `to_page`: uint8 [P] to records uint8 [N, S].

    Raises:
        FormatError: another number of bytes than a page of `tokens` records has.
    """
    size = page_bytes(record, tokens, layout)
    if page.dtype is not torch.uint8 or tuple(page.shape) != (size,):
        raise FormatError(
            f"{page.dtype} {tuple(page.shape)} as a page of {tokens} {record.kind!r} records: "
            f"must be uint8 [{size}]"
        )
    if layout == "interleaved":
        return page[: tokens * record.stride].view(tokens, record.stride).clone()
    cut = tokens * record.data_width
    data, scales = page[:cut], page[cut : tokens * record.stride]
    return torch.cat(
        (data.view(tokens, record.data_width), scales.view(tokens, record.scale_width)), -1
    )
