"""The ATen operations that move values without reading them.

They do to bytes what they do to 8-bit floats. Whatever is not listed computes, and is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import fx

_SELECTIONS = {  # operation -> its argument that says where, and is no value
    "index": "indices",
    "index_select": "index",
    "gather": "index",
    "take": "index",
    "embedding": "indices",
    "index_copy": "index",
    "index_fill": "index",
    "index_put": "indices",
    "scatter": "index",
    "where": "condition",
    "masked_fill": "mask",
    "masked_scatter": "mask",
}
_VIEWS = """
    view _unsafe_view reshape _reshape_alias expand slice select permute transpose t squeeze
    unsqueeze unbind split split_with_sizes alias detach as_strided unfold diagonal
"""
_COPIES = """
    clone flip roll repeat cat stack slice_scatter select_scatter constant_pad_nd lift_fresh_copy
    fill zero zeros empty empty_strided full
"""
# Their tensor says a shape and a dtype, and is no value.
_LIKE = "full_like zeros_like empty_like new_empty new_empty_strided new_zeros new_full"
LIKE = frozenset(_LIKE.split())
MOVES: dict[str, str] = dict.fromkeys((*_VIEWS.split(), *_COPIES.split(), *LIKE), "") | _SELECTIONS
# Arguments whose numbers become values: their code is written instead.
NUMBERS = frozenset(("self", "other", "value", "fill_value"))
# Arguments that turn a move into a sum.
SUMS = frozenset(("accumulate", "reduce"))


def arguments(node: fx.Node) -> Iterator[tuple[str, Any]]:
    """(name in the schema, what was given) for the positional arguments of an ATen operation."""
    target: Any = node.target
    names = [argument.name for argument in target._schema.arguments]
    yield from zip(names, node.args, strict=False)
