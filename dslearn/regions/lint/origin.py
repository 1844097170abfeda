"""What is known of the tensors that come from outside of a graph."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, fx, nn


class Origin(NamedTuple):
    """An input: its name, whether it is a weight, whether it lives in host memory."""

    name: str = "a tensor of the surrounding code"
    weight: bool = False
    host: bool = False


def of_input(
    node: fx.Node, example: Tensor, host: bool = False, captured: Sequence[str] = ()
) -> Origin:
    """An input of Dynamo's graph, named as the user would write it.

    `captured` are the names in the closure of the compiled function.
    """
    source = getattr(getattr(node, "_dynamo_source", None), "name", node.name)
    text = str(source() if callable(source) else source)
    weight = isinstance(example, nn.Parameter) or "_buffers[" in text
    text = re.sub(r"\b(?:_parameters|_buffers|_modules)\['(\w+)'\]", r"\1", text)
    text = re.sub(r"\b[LG]\['(\w+)'\]", r"\1", text)
    for i, name in enumerate(captured):
        text = text.replace(f"function.__closure__[{i}].cell_contents", name)
    return Origin(text.removeprefix("function.").removeprefix("self."), weight, host)
