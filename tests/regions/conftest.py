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


@pytest.fixture
def own_graphs(tmp_path, monkeypatch):
    """An environment without settings of ours, and an empty cache; -> its folder."""
    for name in (settings.MODE, settings.TIMING, settings.COMPILER):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(settings.CACHE, str(tmp_path / "cache"))
    _forget()
    yield tmp_path / "cache" / "graphs"
    _forget()
