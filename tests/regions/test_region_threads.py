"""Threads inside a region at once, as ranks of one process are: none waits for another's lock."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch
from torch import Tensor, nn

from dslearn import regions
from dslearn.model.stage import stage

pytestmark = pytest.mark.usefixtures("own_graphs")
THREADS = 2
_meeting: list[Barrier] = []


@torch.library.custom_op("dslearn_tests::meet", mutates_args=())
def meet(x: Tensor) -> Tensor:
    """A copy of x, once all threads are here: what a collective does."""
    for barrier in _meeting:
        barrier.wait(timeout=20)
    return x.clone()


@meet.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class Rank(nn.Module):
    @stage("gather")
    def gather(self, x):
        return torch.ops.dslearn_tests.meet(x) * 2


@pytest.mark.parametrize("warm", [False, True])
def test_threads_meet_inside_a_region(warm):
    def call(_: int) -> list[float]:
        with torch.inference_mode(), regions.use("regions"):
            return Rank().gather(torch.ones(2)).tolist()

    _meeting.clear()
    assert call(0) == [2, 2]  # alone: this makes the graph
    regions.warm(warm)
    _meeting.append(Barrier(THREADS))
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            assert list(pool.map(call, range(THREADS))) == [[2, 2]] * THREADS
    finally:
        _meeting.clear()
        regions.warm(False)
    assert regions.report().graphs == 1
