"""What tensors and registers have in common: Python runs before they have a value.

Arithmetic, comparison, truth, iteration and length are refused; `==` and `!=` with None are legal,
because `is` is not part of the language. Source: docs/reference/nki.md, "Tensors and views".
"""

from __future__ import annotations

import numbers
import operator
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, NoReturn

from dslearn.sim.rules import ArgumentError


def whole(what: str, values: Iterable[Any]) -> tuple[int, ...]:
    """`values` as ints.

    Raises:
        ArgumentError: they are not integers.
    """
    try:
        return tuple(map(operator.index, values))
    except ArgumentError:  # a register, which says more
        raise
    except TypeError:
        raise ArgumentError(f"{what} {values!r}: integers", rule="arguments") from None


class RuntimeValue:
    """What Python does not see: every operator calls `refuse`, in the words of the subclass."""

    __slots__ = ()
    __array_ufunc__ = None  # NumPy leaves `np.float32(2) * value` to the value

    @abstractmethod
    def refuse(self) -> NoReturn:
        """Raise an ArgumentError in the words of the subclass."""

    def _operator(self, *_: Any) -> NoReturn:
        self.refuse()

    __bool__ = __int__ = __index__ = __float__ = __iter__ = __len__ = _operator
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __matmul__ = _operator
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _operator
    __pow__ = __rpow__ = __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _operator
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _operator
    __lt__ = __le__ = __gt__ = __ge__ = __neg__ = __pos__ = __abs__ = __invert__ = _operator

    def __eq__(self, other: object) -> bool:
        if other is not self and isinstance(other, numbers.Number | RuntimeValue):
            self.refuse()
        return other is self

    __hash__ = object.__hash__
