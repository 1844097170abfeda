"""A random checkpoint that speaks, for the tools that run one."""

from __future__ import annotations

from pathlib import Path

import pytest

from dslearn.engine import LM, load
from tests.engine.engine_model import save_random_lm

# Enough for a kv source of each ratio, a reindex layer and one Engram: quick to run many times.
FIVE_LAYERS = {
    "num_hidden_layers": 5,
    "compress_ratios": [0, 2, 1, 1, 1],
    "kv_source_layer_ids": [1, 2],
    "index_source_layer_ids": [1, 2, 3],
    "candidate_source_layer_id": 2,
    "engram_layer_ids": [1],
}


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_lm(tmp_path_factory.mktemp("random"), **FIVE_LAYERS)


@pytest.fixture(scope="session")
def lm(directory: Path) -> LM:
    return load(directory)
