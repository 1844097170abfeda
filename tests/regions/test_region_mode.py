"""The mode of a process: decided once, by the environment or for a block."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dslearn import regions
from dslearn.errors import UsageError
from tests.support.stack import Stack, inputs

pytestmark = pytest.mark.usefixtures("own_graphs")


def lines():
    return {line.region: line for line in regions.report()}


def test_the_environment_decides_once(monkeypatch):
    monkeypatch.setenv("DSLEARN_GRAPH_MODE", "regions")
    regions.install()
    monkeypatch.setenv("DSLEARN_GRAPH_MODE", "eager")
    with torch.inference_mode():
        Stack()(*inputs())
        with regions.use("eager"):
            Stack()(*inputs())
    assert lines()["Layer.store"].calls == 3


def test_the_decorator_of_regions_installs_what_it_needs(monkeypatch):
    monkeypatch.setenv("DSLEARN_GRAPH_MODE", "regions")

    class Twice(nn.Module):
        @regions.region(stage="double")
        def double(self, x):
            return x * 2

    with torch.inference_mode():
        assert Twice().double(torch.ones(2)).tolist() == [2, 2]
    assert lines()["Twice.double"].graphs == 1


@pytest.mark.parametrize(
    ("variable", "value"),
    [("DSLEARN_GRAPH_MODE", "region"), ("DSLEARN_HOST_TIMING", "yes")],
)
def test_a_wrong_value_is_one_error(monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    with pytest.raises(UsageError, match=f"{variable}={value}: must be"):
        regions.install()


def test_a_wrong_mode_is_one_error():
    with pytest.raises(UsageError, match="mode=all: must be one of eager, regions, whole"):
        regions.use("all").__enter__()
