"""The model in readable torch modules: `Model`, its `State`, and loading."""

from dslearn.model.model import Model
from dslearn.model.state import State

__all__ = ["Model", "State"]
