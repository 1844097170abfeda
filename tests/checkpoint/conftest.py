"""One small quantised checkpoint for the whole folder; tests damage copies of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dslearn.checkpoint.storage import quantise
from dslearn.config import Config
from tests.support.files import save_single
from tests.support.random_model import random_dense, tiny_random_config


@pytest.fixture(scope="session")
def raw_config() -> dict[str, Any]:
    return tiny_random_config()


@pytest.fixture(scope="session")
def dense(raw_config) -> dict[str, torch.Tensor]:
    return random_dense(Config.from_dict(raw_config), seed=1)


@pytest.fixture(scope="session")
def stored(raw_config, dense) -> dict[str, torch.Tensor]:
    """The released storage of `dense`; a test that changes it takes `dict(stored)` first."""
    return quantise(Config.from_dict(raw_config), dense)


@pytest.fixture
def damaged(tmp_path, raw_config, stored):
    """Save the checkpoint after `change(tensors)`; returns its directory."""

    def build(change=None, **overrides: Any) -> Path:
        tensors = dict(stored)
        if change is not None:
            change(tensors)
        return save_single(tmp_path / "damaged", {**raw_config, **overrides}, tensors)

    return build
