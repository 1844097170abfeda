"""Cache pages: strides, both layouts, padding, round trips."""

import pytest
import torch

from dslearn.errors import FormatError
from dslearn.formats import pages
from dslearn.formats.records import Record

ALL = pytest.mark.parametrize(
    "kind,dim,layout",
    [
        ("window", 512, "split"),
        ("window", 512, "interleaved"),
        ("compressed", 512, "split"),
        ("compressed", 512, "interleaved"),
        ("index", 128, "split"),
        ("index_fp8", 128, "split"),
        ("v4", 512, "split"),
    ],
)


def some_records(record, tokens):
    return (torch.arange(tokens * record.stride) % 251).to(torch.uint8).view(tokens, record.stride)


@pytest.mark.parametrize(
    "kind,dim,layout,tokens,size",
    [
        ("v4", 512, "split", 64, 37440),  # 37,376 without padding
        ("window", 512, "split", 64, 33792),
        ("window", 512, "interleaved", 1, 1024),
        ("compressed", 512, "split", 1, 512),
        ("compressed", 512, "split", 64, 18432),
        ("compressed", 512, "interleaved", 3, 1024),
        ("index", 128, "split", 64, 4352),
        ("index_fp8", 128, "split", 64, 8448),
    ],
)
def test_page_sizes(kind, dim, layout, tokens, size):
    assert pages.page_bytes(Record(kind, dim), tokens, layout) == size


@ALL
@pytest.mark.parametrize("tokens", [0, 1, 3, 64])
def test_round_trip(kind, dim, layout, tokens):
    record = Record(kind, dim)
    rows = some_records(record, tokens)
    page = pages.to_page(rows, record, layout)
    assert page.shape == (pages.page_bytes(record, tokens, layout),)
    assert torch.equal(pages.from_page(page, record, tokens, layout), rows)
    assert page[tokens * record.stride :].sum() == 0, "padding is zero"


def test_split_page_has_all_data_before_all_scales():
    record = Record("v4", 512)
    rows = some_records(record, 3)
    page = pages.to_page(rows, record)
    for token in range(3):
        assert torch.equal(page[576 * token :][:576], rows[token, :576])
        assert torch.equal(page[576 * 3 + 8 * token :][:8], rows[token, 576:])


def test_interleaved_page_is_record_after_record():
    record = Record("window", 512)
    rows = some_records(record, 3)
    page = pages.to_page(rows, record, "interleaved")
    assert torch.equal(page[528:1056], rows[1])


def test_refusals():
    record = Record("index", 128)
    with pytest.raises(FormatError, match="must be \\['split'\\]"):
        pages.page_bytes(record, 4, "interleaved")
    with pytest.raises(FormatError, match="uint8 \\[tokens, 68\\]"):
        pages.to_page(torch.zeros(2, 67, dtype=torch.uint8), record)
    with pytest.raises(FormatError, match="uint8 \\[136\\]"):
        pages.from_page(torch.zeros(130, dtype=torch.uint8), record, 2)
