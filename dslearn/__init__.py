"""dslearn: understand, and run, the decode system of a DeepSeek-V4.1 model on AWS Trainium2.

Nothing heavy is imported here: torch arrives with the first name that needs it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dslearn.doctor import doctor
    from dslearn.engine import LM, load
    from dslearn.numerics import Numerics
    from dslearn.regions.lint import lint

__version__ = "0.1.0"
__all__ = ["LM", "Numerics", "__version__", "doctor", "lint", "load"]

_HOME = {
    "LM": "dslearn.engine",
    "load": "dslearn.engine",
    "Numerics": "dslearn.numerics",
    "doctor": "dslearn.doctor",
    "lint": "dslearn.regions.lint",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'dslearn' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
