"""One random checkpoint for the whole folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from dslearn.engine import LM, load
from tests.engine.engine_model import save_random_lm


@pytest.fixture(scope="session")
def random_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_lm(tmp_path_factory.mktemp("random"))


@pytest.fixture(scope="session")
def lm(random_directory: Path) -> LM:
    return load(random_directory)
