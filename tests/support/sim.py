"""Tensors for tests of the simulator: filled tiles, their values, and refusals by rule."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from dslearn.sim.access import load, store
from dslearn.sim.dtypes import NUMPY, dtype
from dslearn.sim.language.allocate import ndarray
from dslearn.sim.memory import MemoryRegion
from dslearn.sim.rules import KernelError
from dslearn.sim.tensor import NkiTensor

SBUF, PSUM = MemoryRegion.sbuf, MemoryRegion.psum
HBM, SHARED = MemoryRegion.private_hbm, MemoryRegion.shared_hbm


def filled(array: Any, region: MemoryRegion = SBUF, kind: Any = None) -> NkiTensor:
    """A tensor of `region` that holds `array`, as dtype `kind` (the array's own by default)."""
    array = np.asarray(array)
    t = ndarray(array.shape, kind or dtype(array.dtype), region)
    store(t, array.astype(NUMPY[t.dtype]))
    return t


def values(t: NkiTensor) -> np.ndarray:
    """A copy of the elements of `t`; reading refuses what nobody wrote."""
    return np.array(load(t))


@contextmanager
def expect_refusal(
    rule: str, *words: str, kind: type[BaseException] = KernelError
) -> Iterator[Any]:
    """The block must be refused for breaking `rule`, in a text that holds `words`."""
    with pytest.raises(kind) as caught:
        yield caught
    error: Any = caught.value
    assert error.rule == rule, f"refused for {error.rule}: {error}"
    missing = [word for word in words if word not in str(error)]
    assert not missing, f"{missing} not in: {error}"
    assert f"[rule {rule}" in str(error)
