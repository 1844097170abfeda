"""Options of the device's compiler: one argument each, nothing lost."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslearn.regions.options import merge

INNER = "--internal-hlo2tensorizer-options"


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (("",), ""),
        (("--auto-cast=none", ""), "--auto-cast=none"),
        (("-O1 --lnc 2", "-O2"), "--lnc=2 -O2"),
        (("--lnc 2 --verbose", "--lnc=1"), "--verbose --lnc=1"),
        (("--auto-cast=none", "--auto-cast matmult"), "--auto-cast=matmult"),
        ((f"{INNER}=--verify-hlo", f"{INNER}=--x=3"), f"'{INNER}=--verify-hlo --x=3'"),
        ((f"{INNER} --verify-hlo", f"{INNER} '--x=3 -y'"), f"'{INNER}=--verify-hlo --x=3 -y'"),
        ((f"{INNER}=--x=1 {INNER}='--y --x=2'",), f"'{INNER}=--y --x=2'"),
        ((f"-O1 {INNER}=--x", "--verbose"), f"-O1 {INNER}=--x --verbose"),
    ],
)
def test_merging(parts, expected):
    assert merge(*parts) == expected


flags = st.sampled_from(["--verify-hlo", "--x=1", "--y=2", "--modular-flow-mac-threshold=10"])


@given(st.lists(st.lists(flags, min_size=1, max_size=3, unique=True), min_size=1, max_size=5))
def test_every_inner_option_is_in_the_one_argument(groups):
    merged = merge(*(f"-O1 {INNER}={shlex.quote(' '.join(group))}" for group in groups))
    (outer,) = [word for word in shlex.split(merged) if word.startswith(INNER)]
    inner = outer.partition("=")[2].split()
    assert sorted(inner) == sorted({flag for group in groups for flag in group})
    assert merge(merged) == merged
