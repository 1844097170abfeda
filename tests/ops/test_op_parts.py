"""Forms, adapters and the ledger of paths, each alone."""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dslearn import backend, ops
from dslearn.errors import UsageError
from dslearn.ops.adapting import as_bytes, padded
from dslearn.ops.forms import DTYPES, complaint, parse
from dslearn.ops.ledger import Ledger
from dslearn.ops.rmsnorm import rmsnorm

PRODUCT = {
    "x": "bf16|fp32 [M, K]",
    "codes": "u8 [N, K]",
    "scale": "ue8m0|u8 [N/32, K/32]",
    "flag": "i32 [1]",
}


def product(m=2, n=65, k=96, **changes):
    """Arguments that fit `PRODUCT`."""
    fitting = {
        "x": torch.zeros(m, k),
        "codes": torch.zeros(n, k, dtype=torch.uint8),
        "scale": torch.zeros(-(-n // 32), -(-k // 32), dtype=torch.uint8),
        "flag": torch.zeros(1, dtype=torch.int32),
    }
    return complaint({name: parse(text) for name, text in PRODUCT.items()}, fitting | changes)


@given(st.integers(0, 5), st.integers(1, 200), st.integers(1, 200))
def test_blocks_are_rounded_up(m, n, k):
    assert product(m, n, k) == ""
    short = torch.zeros((n - 1) // 32, -(-k // 32), dtype=torch.uint8)
    assert product(m, n, k, scale=short).startswith("scale is u8 [")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x": torch.zeros(2, 95)}, "codes is u8 [65, 96] where M = 2, K = 95, N = 65"),
        ({"x": torch.zeros(2, 96).half()}, "x is fp16 [2, 96]"),
        ({"x": torch.zeros(96)}, "x is fp32 [96]"),
        ({"flag": torch.zeros(2, dtype=torch.int32)}, "flag is i32 [2] where M = 2"),
        ({"flag": torch.zeros((), dtype=torch.int32)}, "flag is i32 []"),
        ({"flag": None}, ""),
        ({"x": None}, ""),
    ],
)
def test_a_complaint_names_the_tensor_and_the_sizes(changes, words):
    assert product(**changes).startswith(words) and bool(product(**changes)) == bool(words)


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_has_a_name(name):
    t = torch.empty(3, dtype=DTYPES[name])
    assert complaint({"t": parse(f"{name} [3]")}, {"t": t}) == ""
    assert complaint({"t": parse(f"{name} [4]")}, {"t": t}) == f"t is {name} [3]"


@pytest.mark.parametrize(
    "text", ["", "bf16", "bf16[R]", "float32 [R]", "u8 [R-1]", "u8 [R/0]", "u8 [,]"]
)
def test_what_is_no_form_is_refused(text):
    with pytest.raises(UsageError, match="is no form: write dtypes"):
        parse(text)
    assert parse("u8 [R/2]").dims[0].size({"R": 3}) == 2


@given(st.integers(0, 9), st.integers(0, 9), st.integers(1, 5), st.integers(1, 5))
def test_padding_adds_zeros_behind(rows, columns, tall, wide):
    x = torch.ones(rows, columns)
    y = padded(x, tall, wide)
    assert y.shape[0] % tall == 0 and y.shape[1] % wide == 0
    assert 0 <= y.shape[0] - rows < tall and 0 <= y.shape[1] - columns < wide
    assert torch.equal(y[:rows, :columns], x) and y.sum() == x.sum()
    assert y is x or y.shape != x.shape


def test_padding_takes_a_number_per_dim():
    with pytest.raises(ValueError, match="zip"):
        padded(torch.ones(2, 2), 4)
    assert padded(torch.ones(2, 2), 4, 1).shape == (4, 2)


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2, torch.uint8])
def test_bytes_are_the_same_memory(kind):
    x = torch.arange(8, dtype=torch.uint8).view(kind)
    assert as_bytes(x).dtype == torch.uint8 and as_bytes(x).data_ptr() == x.data_ptr()


def test_a_ledger_reads_as_one_line():
    ledger = Ledger()
    assert str(ledger) == "no operation was called" and ledger.counts() == {}
    for op, path in (("swiglu", "kernel"), ("rmsnorm", "twin"), ("swiglu", "kernel")):
        ledger.note(op, path)
    assert str(ledger) == "rmsnorm: twin 1; swiglu: kernel 2"


def call():
    rmsnorm(torch.ones(1, 4), torch.ones(4), 1e-6)


def test_ledgers_nest_and_the_process_counts_everything():
    before = ops.paths().get("rmsnorm", {}).get("twin", 0)
    with backend.use("cpu"), ops.collect() as outer:
        call()
        with ops.collect() as inner:
            call()
        call()
    call()
    assert inner.counts() == {"rmsnorm": {"twin": 1}} and outer.counts() == {"rmsnorm": {"twin": 3}}
    assert ops.paths()["rmsnorm"]["twin"] == before + 4


def test_a_ledger_sees_its_own_thread_only():
    before = ops.paths().get("rmsnorm", {}).get("twin", 0)
    with ops.collect() as ledger:
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    assert ledger.counts() == {} and ops.paths()["rmsnorm"]["twin"] == before + 1
