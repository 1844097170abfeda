"""The tile of the 128 x 128 array that a matmul uses, so that small matmuls run side by side.

Source: docs/reference/nki.md, section "Matmul".
"""

from __future__ import annotations

from typing import Any, NamedTuple

from dslearn.sim.isa.operands import whole_number
from dslearn.sim.rules import RuleError

ARRAY, SIZES = 128, (32, 64, 128)


class Tiling(NamedTuple):
    """First row and column, and rows and columns, of the tile."""

    position: tuple[int, int]
    size: tuple[int, int]


WHOLE = Tiling((0, 0), (ARRAY, ARRAY))


def tiling(position: Any, size: Any) -> Tiling:
    """The tile that `tile_position` and `tile_size` name; the whole array for () or None.

    The vendor's documentation allows column tiles in the text and forbids them at the parameters;
    here they are allowed.

    Raises:
        RuleError: only one is given, or not a tile of the array (rule operand).
    """
    if not position and not size:
        return WHOLE
    if not position or not size:
        raise RuleError("nc_matmul: give tile_position and tile_size, or neither", rule="operand")
    if not (_pair(position) and _pair(size)) or any(s not in SIZES for s in size):
        raise RuleError(
            f"nc_matmul tile_size={size}: rows and columns are 32, 64 or 128", rule="operand"
        )
    if any(p % s or not 0 <= p <= ARRAY - s for p, s in zip(position, size, strict=True)):
        raise RuleError(
            f"nc_matmul tile_position={position}: a multiple of tile_size={size} in the "
            f"{ARRAY} x {ARRAY} array",
            rule="operand",
        )
    return Tiling((int(position[0]), int(position[1])), (int(size[0]), int(size[1])))


def _pair(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2 and all(map(whole_number, value))
