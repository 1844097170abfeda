"""Every test of regions has graphs of its own, in memory and on disk."""

from __future__ import annotations

import pytest
import torch

from dslearn import regions
from dslearn.model import stage
from dslearn.regions import settings
from dslearn.regions.backend import graphs


def _forget():
    settings.from_environment.cache_clear()
    graphs.cache_clear()
    regions.forget()
    stage.install(None)
    torch._dynamo.reset()


def _own(patch, folder):
    """An environment without settings of ours, and an empty cache in `folder`."""
    for name in (settings.MODE, settings.TIMING, settings.COMPILER):
        patch.delenv(name, raising=False)
    patch.setenv(settings.CACHE, str(folder / "cache"))
    _forget()


@pytest.fixture
def own_graphs(tmp_path, monkeypatch):
    """Graphs of one test; -> the folder of its cache."""
    _own(monkeypatch, tmp_path)
    yield tmp_path / "cache" / "graphs"
    _forget()


@pytest.fixture(scope="module")
def shared_graphs(tmp_path_factory):
    """Graphs that the tests of a module share; -> the folder of their cache."""
    folder = tmp_path_factory.mktemp("shared")
    with pytest.MonkeyPatch.context() as patch:
        _own(patch, folder)
        yield folder / "cache" / "graphs"
    _forget()
