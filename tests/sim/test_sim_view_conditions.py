"""Where a check of a view has several conditions, each alone is enough to refuse."""

from __future__ import annotations

import pytest

from dslearn.sim.indexing import Ds
from dslearn.sim.language.allocate import ndarray
from tests.support.isa import hbm, register, rows, tile
from tests.support.sim import HBM, PSUM, expect_refusal

VIEWS = [
    ("a triple", lambda: tile(4, 16).ap([[16, 4], [1, 4, 2]]), "bounds", "pairs [stride"),
    (
        "a pattern of a gather",
        lambda: hbm(5, 4).vector_select(0, rows(3, 1)).ap([[4, 3], [1, 4]]),
        "view", "apply .ap to the root",
    ),
    (
        "a second runtime offset",
        lambda: hbm(5, 4).select(0, register()).ap([[4, 1]], scalar_offset=register()),
        "view", "apply .ap to the root",
    ),
    (
        "beyond the end of a partition",
        lambda: tile(8, 16).ap([[16, 4], [1, 4]], offset=14), "bounds", "leaves its partition",
    ),
    (
        "before the start of a partition",
        lambda: tile(8, 16).ap([[16, 4], [-1, 4]], offset=17), "bounds", "leaves its partition",
    ),
    (
        "an offset in no dimension",
        lambda: hbm(5, 4).ap([[1, 4]], scalar_offset=register(), indirect_dim=5),
        "bounds", "indirect_dim=5",
    ),
    (
        "gathered rows as columns, a square",
        lambda: hbm(5, 4).vector_select(0, rows(4, 1)).permute((1, 0)),
        "view", "choose rows in the offset tile",
    ),
    (
        "an offset of 16 bits",
        lambda: hbm(5, 4).ap([[1, 4]], scalar_offset=tile(1, 1, kind="int16")),
        "operand", "scalar offset",
    ),
    (
        "row indices in HBM",
        lambda: hbm(5, 4).ap([[4, 3], [1, 4]], vector_offset=hbm(3, 1)), "operand", "3 rows",
    ),
    ("rows of a tile", lambda: tile(5, 4).vector_select(0, rows(3, 1)), "region", "HBM tensors"),
    (
        "rows of rows",
        lambda: hbm(5, 4).vector_select(0, rows(3, 1)).vector_select(0, rows(3, 1)),
        "view", "select rows of the root",
    ),
    (
        "fractional rows",
        lambda: hbm(5, 4).vector_select(0, tile(3, 1)), "operand", "of int32 or uint32",
    ),
    (
        "two columns of rows",
        lambda: hbm(5, 4).vector_select(0, rows(3, 2)), "operand", "one index per partition",
    ),
    (
        "words from the second byte on",
        lambda: tile(4, 16, kind="uint8")[:, 1:5].view("uint32"), "view", "multiples of 4 bytes",
    ),
    ("no such dimension", lambda: tile(4, 16).slice(5, 0, 1, 1), "bounds", "dimension 5"),
    ("three indices", lambda: tile(4, 16)[0, 0, 0], "bounds", "3 indices for 2 dimensions"),
    ("two ellipses", lambda: tile(4, 16)[..., ...], "bounds", "0 indices for 2 dimensions"),
    ("a tile as an index", lambda: tile(4, 16)[rows(1, 1)], "register", ".select(dim, index)"),
    ("a tile as a bound", lambda: tile(4, 16)[:, Ds(rows(1, 1), 2)], "register", ".select("),
    ("no dimension at all", lambda: ndarray((), "float32", HBM), "shape", "at least one element"),
    (
        "a tile larger than the memory",
        lambda: ndarray((4, 1 << 16), "float32"), "sbuf-capacity", "sbuf has 212992",
    ),
    (
        "a PSUM tile larger than the memory",
        lambda: ndarray((4, 1 << 13), "float32", PSUM), "psum-capacity", "psum has 16384",
    ),
    ("a name twice", lambda: tile(4, 4).rearrange(("a", "a"), ("a", "a")), "view", "each name"),
    ("another name", lambda: tile(4, 4).rearrange(("a", "b"), ("a", "c")), "view", "each name"),
    (
        "names for three dimensions",
        lambda: tile(4, 4).rearrange(("a", "b", "c"), ("a", "b", "c")), "view", "has 2 dimensions",
    ),
    ("two unknown sizes", lambda: _split({}), "view", "give all but one"),
    ("a size that does not divide", lambda: _split({"a": 3}), "view", "give all but one"),
    ("sizes of half", lambda: _split({"a": 2, "b": 2}), "view", "give all but one"),
    ("a dimension twice", lambda: tile(4, 4, 4).permute((0, 1, 1)), "view", "name each once"),
    ("the last free dimension", lambda: tile(4, 1).squeeze_dim(1), "view", "two must remain"),
    ("eight in threes", lambda: tile(4, 8).reshape_dim(1, (3, -1)), "view", "does not hold 8"),
    ("repeated partitions", lambda: tile(1, 4).broadcast(0, 256), "partition-view", ""),
]  # fmt: skip


def _split(sizes: dict[str, int]) -> None:
    tile(4, 8).rearrange(("p", ("a", "b")), ("p", "a", "b"), sizes)


@pytest.mark.parametrize(
    "call, rule, words", [pytest.param(*case, id=name) for name, *case in VIEWS]
)
def test_one_wrong_thing_is_enough(call, rule, words):
    with expect_refusal(rule, words):
        call()
