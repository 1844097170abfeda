"""From a checkpoint to text: `load` gives an `LM` that generates."""

from dslearn.engine.lm import LM, load

__all__ = ["LM", "load"]
