"""tiny with one thing wrong: what its text would say if a field of its config were misread."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dslearn.engine.lm import LM, load, model_directory
from dslearn.errors import UsageError


def broken(**fields: Any) -> LM:
    """tiny, loaded with these fields of its `text_config` changed; the weights are as they are.

    Raises:
        UsageError: a field that its config.json does not have.
    """
    with TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(model_directory("tiny"), Path(folder) / "tiny"))
        file = copy / "config.json"
        config = json.loads(file.read_text(encoding="utf-8"))
        unknown = sorted(fields.keys() - config["text_config"].keys())
        if unknown:
            raise UsageError(f"{', '.join(unknown)}: no field of the text_config of tiny")
        config["text_config"].update(fields)
        file.write_text(json.dumps(config), encoding="utf-8")
        return load(copy)
