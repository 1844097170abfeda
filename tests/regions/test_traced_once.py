"""Tracing is the slow part of a new graph: it happens once for each, and never for a known one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dslearn import regions
from dslearn.model.stage import stage

pytestmark = pytest.mark.usefixtures("own_graphs")
_traced: list[int] = []


@torch.compiler.assume_constant_result
def traced() -> bool:
    """Called when a graph is traced, and not when it runs."""
    _traced.append(1)
    return True


class Counted(nn.Module):
    @stage("counted")
    def counted(self, x):
        return x * 2 if traced() else x


def test_each_graph_is_traced_once():
    _traced.clear()
    with torch.inference_mode(), regions.use("regions"):
        for rows in (1, 2, 3, 3, 2, 1):
            assert Counted().counted(torch.ones(rows)).tolist() == [2] * rows
    assert len(_traced) == regions.report().graphs == 3
