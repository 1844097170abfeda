"""On-chip copies: tensor_copy, memset, tensor_copy_predicated, assignment."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslearn.sim.isa.copies import memset, tensor_copy, tensor_copy_predicated
from dslearn.sim.isa.enums import engine
from dslearn.sim.isa.registers import register_alloc
from dslearn.sim.language.allocate import ndarray
from dslearn.sim.record import Instruction
from tests.support.sim import HBM, PSUM, SBUF, expect_refusal, filled, values


def instruction(handle: object) -> Instruction:
    one = handle._instruction  # type: ignore[attr-defined]
    assert isinstance(one, Instruction)
    return one


def test_a_copy_casts_once_through_fp32() -> None:
    src = filled([[1.0, 2.5, 247.9, 248.0], [np.nan, -0.0, 1e-3, -500.0]], kind="float32")
    dst = ndarray((2, 2, 2), "float8_e4m3", SBUF)
    tensor_copy(dst=dst, src=src)
    expected = values(src).astype(ml_dtypes.float8_e4m3).reshape(2, 2, 2)
    assert np.array_equal(values(dst).view(np.uint8), expected.view(np.uint8))


def test_a_copy_of_one_dtype_keeps_every_bit() -> None:
    words = np.array([[0x7FC12345, 0x80000000, 2**24 + 1]], np.uint32)
    for kind in ("float32", "int32", "uint32"):
        src = filled(words.view(np.uint32), kind="uint32").view(kind)
        dst = ndarray((1, 3), kind, SBUF)
        tensor_copy(dst=dst, src=src)
        assert np.array_equal(values(dst).view(np.uint32), words)


def test_int32_above_2_24_rounds_when_cast() -> None:
    src = filled(np.array([[2**24 + 1]], np.int32))
    dst = ndarray((1, 1), "uint32", SBUF)
    tensor_copy(dst=dst, src=src)
    assert values(dst)[0, 0] == 2**24


def test_a_copy_onto_an_overlapping_view_reads_first() -> None:
    t = filled(np.arange(10, dtype=np.float32)[None])
    tensor_copy(dst=t[:, 1:10], src=t[:, 0:9])
    assert values(t)[0].tolist() == [0, 0, 1, 2, 3, 4, 5, 6, 7, 8]


@given(start=st.integers(0, 12), count=st.integers(1, 4))
def test_a_runtime_column_moves_the_view(start: int, count: int) -> None:
    data = np.arange(32, dtype=np.float32).reshape(2, 16)
    t, dst = filled(data), ndarray((2, count), "float32", SBUF)
    offset = filled(np.array([[start]], np.int32))
    view = t.ap([[16, 2], [1, count]], scalar_offset=offset, indirect_dim=1)
    handle = tensor_copy(dst=dst, src=view)
    assert np.array_equal(values(dst), data[:, start : start + count])
    assert len(instruction(handle).inputs) == 2, "the offset tile is an input too"


def test_a_runtime_column_cannot_slide_into_the_next_partition() -> None:
    t, dst = filled(np.zeros((2, 16), np.float32)), ndarray((1, 4), "float32", SBUF)
    start = register_alloc(13)
    view = t[0:1].ap([[16, 1], [1, 4]], scalar_offset=start, indirect_dim=1)
    with expect_refusal("bounds", "starts at element 13", kind=IndexError):
        tensor_copy(dst=dst, src=view)
    start.write(12)
    tensor_copy(dst=dst, src=view)
    assert values(dst).shape == (1, 4)


def test_engines_of_copies() -> None:
    src = filled(np.ones((4, 4), np.float32))
    sbuf, psum = ndarray((4, 4), "float32", SBUF), ndarray((4, 4), "float32", PSUM)
    assert instruction(tensor_copy(dst=sbuf, src=src, engine=engine.gpsimd)).engine == "gpsimd"
    assert instruction(tensor_copy(dst=psum, src=src, engine=engine.scalar)).engine == "scalar"
    with expect_refusal("engine", "GpSimd not with PSUM"):
        tensor_copy(dst=psum, src=src, engine=engine.gpsimd)
    assert instruction(memset(dst=sbuf, value=0, engine=engine.gpsimd)).engine == "gpsimd"
    with expect_refusal("engine", "memset"):
        memset(dst=sbuf, value=0, engine=engine.scalar)


def test_copies_refuse_other_memories_shapes_and_starts() -> None:
    src, dst = filled(np.ones((64, 4), np.float32)), ndarray((128, 4), "float32", SBUF)
    hbm = filled(np.ones((64, 4), np.float32), HBM)
    with expect_refusal("region", "must be in ['sbuf', 'psum'], got private_hbm"):
        tensor_copy(dst=dst[0:64], src=hbm)
    with expect_refusal("shape", "(64, 4)"):
        tensor_copy(dst=dst, src=src)
    with expect_refusal("start-partition", "starts at partition 32 with 64 partitions"):
        tensor_copy(dst=dst[32:96], src=src)
    tensor_copy(dst=dst[64:128], src=src)
    assert values(dst[64:128]).sum() == 256


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        ("int32", -1, -1),
        ("uint8", 255, 255),
        ("uint8", -1, 255),
        ("bfloat16", 1.5, 1.5),
        ("float32", 3, 3.0),
        ("float8_e4m3", 1000.0, np.inf),
        ("tfloat32", 1 + 2**-12, 1.0),
        ("bool_", True, 1),
    ],
)
def test_memset_values(kind: str, value: object, stored: float) -> None:
    t = ndarray((3, 5), kind, SBUF)
    memset(dst=t, value=value)
    assert (values(t).astype(np.float64) == stored).all()


def test_memset_refuses_values_of_another_class() -> None:
    with expect_refusal("operand", "int literal"):
        memset(dst=ndarray((1, 1), "int32", SBUF), value=1.0)
    with expect_refusal("operand", "does not fit uint8"):
        memset(dst=ndarray((1, 1), "uint8", SBUF), value=256)
    with expect_refusal("operand", "only 0"):
        memset(dst=ndarray((1, 1), "float8_e4m3fn_x4", SBUF), value=1)
    with expect_refusal("arguments", "must be a number", kind=TypeError):
        memset(dst=ndarray((1, 1), "float32", SBUF), value="1")
    for zero in (0, 0.0):
        packed = ndarray((1, 1), "float8_e4m3fn_x4", SBUF)
        memset(dst=packed, value=zero)
        assert values(packed)[0, 0] == 0


@given(
    mask=st.lists(st.integers(0, 3), min_size=12, max_size=12),
    reverse=st.booleans(),
    kind=st.sampled_from(["uint8", "uint16", "uint32"]),
)
def test_a_predicated_copy_is_where(mask: list[int], reverse: bool, kind: str) -> None:
    a, b = np.arange(12, dtype=np.float32).reshape(3, 4), -np.ones((3, 4), np.float32)
    chosen = np.array(mask).reshape(3, 4)
    predicate, dst = filled(chosen, kind=kind), filled(b)
    tensor_copy_predicated(dst=dst, src=filled(a), predicate=predicate, reverse_pred=reverse)
    assert np.array_equal(values(dst), np.where((chosen != 0) != reverse, a, b))
    tensor_copy_predicated(dst=dst, src=7.0, predicate=predicate)
    assert (values(dst)[chosen != 0] == 7).all()


def test_false_lanes_of_a_predicated_copy_stay_unwritten() -> None:
    dst, predicate = ndarray((1, 2), "float32", SBUF), filled(np.array([[1, 0]], np.uint8))
    tensor_copy_predicated(dst=dst, src=1.0, predicate=predicate)
    assert values(dst[:, 0:1])[0, 0] == 1
    with expect_refusal("uninitialised", "1 of 2 elements"):
        values(dst)


def test_predicated_copies_refuse() -> None:
    dst, src = filled(np.zeros((2, 2), np.float32)), filled(np.ones((2, 2), np.float32))
    wrong, right = filled(np.ones((2, 2), np.int32)), filled(np.ones((2, 2), np.uint8))
    with expect_refusal("dtype", "uint8, uint16 or uint32"):
        tensor_copy_predicated(dst=dst, src=src, predicate=wrong)
    with expect_refusal("dtype", "it moves bits"):
        half = ndarray((2, 2), "bfloat16", SBUF)
        tensor_copy_predicated(dst=half, src=src, predicate=right)
    psum = [filled(np.ones((2, 2)), PSUM, kind) for kind in ("float32", "uint8")]
    with expect_refusal("two-psum"):
        tensor_copy_predicated(dst=dst, src=psum[0], predicate=psum[1])
    tensor_copy_predicated(dst=dst, src=psum[0], predicate=right)
    assert (values(dst) == 1).all()


def test_assignment_is_a_copy() -> None:
    t, hbm = ndarray((4, 8), "float32", SBUF), filled(np.ones((4, 8), np.float32), HBM)
    t[...] = 0.0
    t[:, 0:4] = hbm[:, 4:8]
    t[0:2, 4:8] = t[0:2, 0:4]
    assert values(t).sum() == 4 * 4 + 2 * 4
    hbm[0:1] = t[3:4]
    assert values(hbm)[0].tolist() == [1, 1, 1, 1, 0, 0, 0, 0]
    with expect_refusal("shape", "nothing broadcasts"):
        t[...] = t[0:1]
    with expect_refusal("region", "only DMA writes HBM"):
        hbm[...] = 0.0
    with expect_refusal("region", "got src=MemoryRegion.psum"):
        hbm[...] = filled(np.ones((4, 8), np.float32), PSUM)
    with expect_refusal("arguments", "a tensor or a number", kind=TypeError):
        t[...] = np.ones((4, 8), np.float32)
    with pytest.raises(TypeError):
        t += 1
