"""dma_copy: counts, casts, memories, issuing engines."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dslearn.sim.isa.dma import dma_copy
from dslearn.sim.isa.enums import dge_mode, engine
from dslearn.sim.language.allocate import ndarray
from tests.support.sim import HBM, PSUM, SBUF, expect_refusal, filled, values


@given(st.sampled_from([(128, 6), (6, 128), (2, 3, 128), (768,)]), st.booleans())
def test_elements_keep_their_order_whatever_the_shapes(shape: Any, through_sbuf: bool) -> None:
    data = np.arange(768, dtype=np.float32)
    src = filled(data.reshape(shape), HBM)
    dst = ndarray((128, 6), "float32", SBUF if through_sbuf else HBM)
    dma_copy(dst=dst, src=src)
    assert np.array_equal(values(dst), data.reshape(128, 6))


def test_dma_reaches_any_partition() -> None:
    t = filled(np.zeros((128, 2), np.float32))
    dma_copy(dst=t[33:98], src=filled(np.ones((65, 2), np.float32), HBM))
    dma_copy(dst=t[1:3], src=t[50:52])
    assert values(t).sum() == 2 * 67


def test_casts_go_through_fp32_once() -> None:
    data = np.array([[1.0, 300.0, 2.0**-10, -7.3]], np.float32)
    dst = ndarray((1, 4), "float8_e4m3", SBUF)
    dma_copy(dst=dst, src=filled(data, HBM))
    expected = data.astype(ml_dtypes.float8_e4m3)
    assert np.array_equal(values(dst).view(np.uint8), expected.view(np.uint8))


def test_counts_must_agree() -> None:
    src, dst = filled(np.ones((2, 3), np.float32), HBM), ndarray((2, 2), "float32", SBUF)
    words = "requires src and dst to have the same number of elements, got src=6, dst=4"
    with expect_refusal("shape", words, kind=AssertionError):
        dma_copy(dst=dst, src=src)
    dma_copy(dst=dst, src=src[:, 0:2])
    assert values(dst).sum() == 4


def test_psum_is_out_of_reach() -> None:
    tile = filled(np.ones((2, 2), np.float32), PSUM)
    hbm = filled(np.ones((2, 2), np.float32), HBM)
    with expect_refusal(
        "region", "dma_copy requires HBM or SBUF tensors, got src=MemoryRegion.psum"
    ):
        dma_copy(dst=hbm, src=tile)
    with expect_refusal("region", "got dst=MemoryRegion.psum"):
        dma_copy(dst=tile, src=hbm)
    with expect_refusal("arguments", "must be a tensor", kind=TypeError):
        dma_copy(dst=hbm, src=1.0)  # type: ignore[arg-type]


def test_hardware_descriptors_do_not_cast() -> None:
    src, dst = filled(np.ones((2, 2), np.float32), HBM), ndarray((2, 2), "bfloat16", SBUF)
    with expect_refusal("dma-cast", "dge_mode.swdge"):
        dma_copy(dst=dst, src=src, dge_mode=dge_mode.hwdge)
    dma_copy(dst=dst, src=src, dge_mode=dge_mode.swdge)
    dma_copy(dst=dst, src=src.view("bfloat16")[:, ::2], dge_mode=dge_mode.hwdge)
    assert (values(dst) == 0).all(), "the low halves of fp32 ones"
    with expect_refusal("dtype", "float8_e4m3fn"):
        dma_copy(dst=dst, src=filled(np.ones((2, 2)), HBM, "float8_e4m3fn"))


def test_issuing_engines() -> None:
    src, dst = filled(np.ones((2, 2), np.float32), HBM), ndarray((2, 2), "float32", SBUF)
    for legal in (engine.sync, engine.scalar):
        dma_copy(dst=dst, src=src, dge_mode=dge_mode.hwdge, engine=legal)
    with expect_refusal("engine", "only with dge_mode.hwdge"):
        dma_copy(dst=dst, src=src, engine=engine.sync)
    with expect_refusal("engine"):
        dma_copy(dst=dst, src=src, dge_mode=dge_mode.hwdge, engine=engine.vector)
    with expect_refusal("platform", "priority", kind=NotImplementedError):
        dma_copy(dst=dst, src=src, priority=0)
    with expect_refusal("arguments", "dge_mode", kind=TypeError):
        dma_copy(dst=dst, src=src, dge_mode=3)
    assert values(dst).sum() == 4
