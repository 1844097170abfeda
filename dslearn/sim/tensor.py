"""`NkiTensor`: a view of SBUF, PSUM or HBM storage. Creating views moves nothing.

P partitions (dimension 0 on chip), F free elements. Offsets and strides count elements. Views
share their storage; on chip the partition dimension stays first. A view may hold a runtime part:
scalar offsets, added when an instruction runs, or one row index per partition (gather, scatter).
Source: docs/reference/nki.md, section "Tensors and views".
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NoReturn

from dslearn.sim import access_pattern, indexing, layout, rearranging
from dslearn.sim.dtypes import NUMPY, DType
from dslearn.sim.dtypes import dtype as as_dtype
from dslearn.sim.layout import Ints
from dslearn.sim.memory import MemoryRegion, Storage
from dslearn.sim.rules import ArgumentError, RuleError
from dslearn.sim.values import RuntimeValue, whole


class NkiTensor(RuntimeValue):
    """A view: storage, dtype, offset, shape, strides, and the runtime part if there is one."""

    __slots__ = (
        "base", "dtype", "name", "offset", "scalars", "shape", "size", "storage", "strides",
        "vector",
    )  # fmt: skip

    def __init__(  # noqa: PLR0913 - one argument per field of a view
        self,
        storage: Storage,
        dtype: DType,
        shape: Ints,
        strides: Ints,
        offset: int = 0,
        name: str = "",
        base: Ints = (),
    ) -> None:
        self.storage, self.dtype, self.name = storage, dtype, name
        self.shape, self.strides, self.offset = shape, strides, offset
        self.size = prod(shape)  # number of elements: an instruction asks some ten times
        self.base = base or shape  # shape whose rows a runtime offset counts
        self.scalars: tuple[tuple[Any, int], ...] = ()  # (register or tile, elements per unit)
        self.vector: tuple[NkiTensor, int] | None = None  # (index per partition, elements per row)

    def derive(
        self, shape: Ints, strides: Ints, offset: int | None = None, base: Ints | None = None
    ) -> NkiTensor:
        """A view of the same storage and dtype, keeping the runtime part."""
        if self.vector is not None:
            access_pattern.keep_rows(self, shape, strides)
        start = self.offset if offset is None else offset
        base = self.base if base is None else base
        view = NkiTensor(self.storage, self.dtype, shape, strides, start, self.name, base)
        view.scalars, view.vector = self.scalars, self.vector
        return view

    @property
    def buffer(self) -> MemoryRegion:
        """The memory it lives in."""
        return self.storage.region

    @property
    def on_chip(self) -> bool:
        """Whether it lives in SBUF or PSUM."""
        return self.storage.region.on_chip

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return NUMPY[self.dtype].itemsize

    @property
    def row_elements(self) -> int:
        """On chip: elements of the storage's row in one partition."""
        return self.storage.row_bytes // self.itemsize

    def is_contiguous(self) -> bool:
        """Whether the elements (on chip: those of one partition) are consecutive."""
        skip = 1 if self.on_chip else 0
        return layout.is_contiguous(self.shape[skip:], self.strides[skip:])

    def is_indirect(self) -> bool:
        """Whether a runtime value takes part in its addresses."""
        return bool(self.scalars) or self.vector is not None

    def get_pattern(self) -> list[list[int]]:
        """[[stride, count], ...], outermost first."""
        return [[s, n] for s, n in zip(self.strides, self.shape, strict=True)]

    def __getitem__(self, key: Any) -> NkiTensor:
        return indexing.index(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        from dslearn.sim.isa.assign import assign  # an assignment is an instruction

        assign(self[key], value)

    def slice(self, dim: int, start: int, end: int, step: int = 1) -> NkiTensor:
        """Elements start, start + step, ... below `end` of one dimension."""
        return indexing.cut(self, dim, (start, end, step))

    def select(self, dim: int, index: Any) -> NkiTensor:
        """One index of a dimension, which goes; a register or a (1,1) tile makes it dynamic."""
        return indexing.select(self, indexing.dim_of(self, dim), index)

    def vector_select(self, dim: int, vector_offset: NkiTensor) -> NkiTensor:
        """Rows of an HBM tensor, one per partition of the index tile."""
        return access_pattern.vector_select(self, dim, vector_offset)

    def permute(self, dims: Sequence[int]) -> NkiTensor:
        """Dimensions in another order; on chip the partition dimension stays first."""
        if sorted(dims) != list(range(self.ndim)):
            raise RuleError(f"permute({dims}) of {self.ndim} dimensions: name each once", "view")
        if self.on_chip and dims[0] != 0:
            raise RuleError(
                f"permute({dims}): dimension 0 stays first; nc_transpose moves data across lanes",
                rule="partition-view",
            )
        return self.derive(tuple(self.shape[d] for d in dims), tuple(self.strides[d] for d in dims))

    def broadcast(self, dim: int, size: int) -> NkiTensor:
        """A dimension of size 1 seen `size` times."""
        dim = indexing.dim_of(self, dim)
        if self.on_chip and dim == 0:
            raise RuleError(
                "broadcast(0, ...): lanes do not see each other; use nc_stream_shuffle or a matmul "
                "with ones to fill partitions",
                rule="partition-view",
            )
        if self.shape[dim] != 1 or size < 1:
            raise RuleError(
                f"broadcast({dim}, {size}): that dimension has size {self.shape[dim]}, must be 1",
                rule="view",
            )
        shape = (*self.shape[:dim], *whole("broadcast size", (size,)), *self.shape[dim + 1 :])
        return self.derive(shape, (*self.strides[:dim], 0, *self.strides[dim + 1 :]))

    def expand_dim(self, dim: int) -> NkiTensor:
        """A new dimension of size 1 before `dim` (on chip: not before the partitions)."""
        dim = dim if dim >= 0 else dim + self.ndim + 1
        if not (1 if self.on_chip else 0) <= dim <= self.ndim:
            raise RuleError(f"expand_dim({dim}) of {self.shape}: no such place", "partition-view")
        step = self.strides[dim] * self.shape[dim] if dim < self.ndim else 1
        return self.derive(
            (*self.shape[:dim], 1, *self.shape[dim:]),
            (*self.strides[:dim], step, *self.strides[dim:]),
        )

    def squeeze_dim(self, dim: int) -> NkiTensor:
        """Without a dimension of size 1."""
        dim = indexing.dim_of(self, dim)
        if self.shape[dim] != 1 or self.ndim <= (2 if self.on_chip else 1):
            raise RuleError(
                f"squeeze_dim({dim}) of {self.shape}: the dimension must have size 1, and "
                f"{'two' if self.on_chip else 'one'} must remain",
                rule="view",
            )
        rest = [i for i in range(self.ndim) if i != dim]
        return self.derive(tuple(self.shape[i] for i in rest), tuple(self.strides[i] for i in rest))

    def reshape_dim(self, dim: int, shape: Sequence[int]) -> NkiTensor:
        """One dimension split into several; one of them may be -1."""
        dim = indexing.dim_of(self, dim)
        new = layout.infer(whole("reshape_dim", shape), self.shape[dim])
        if new is None:
            raise RuleError(
                f"reshape_dim({dim}, {tuple(shape)}): does not hold {self.shape[dim]} elements",
                rule="view",
            )
        return self.reshape((*self.shape[:dim], *new, *self.shape[dim + 1 :]))

    def flatten_dims(self, start_dim: int, end_dim: int) -> NkiTensor:
        """Dimensions start..end (inclusive) merged into one."""
        start, end = indexing.dim_of(self, start_dim), indexing.dim_of(self, end_dim)
        if start > end:
            raise RuleError(f"flatten_dims({start_dim}, {end_dim}): first, then last", "view")
        return self.reshape((*self.shape[:start], -1, *self.shape[end + 1 :]))

    def reshape(self, shape: Sequence[int]) -> NkiTensor:
        """The same elements in the same order under another shape; never copies."""
        return rearranging.reshape(self, shape)

    def rearrange(
        self, src_pattern: Any, dst_pattern: Any, fixed_sizes: dict[str, int] | None = None
    ) -> NkiTensor:
        """Split, reorder and merge dimensions by name: `(("p", ("a", "b")), ("p", "b", "a"))`."""
        return rearranging.rearrange(self, src_pattern, dst_pattern, fixed_sizes or {})

    def view(self, dtype: Any) -> NkiTensor:
        """The same bytes as another dtype; the last dimension, which is consecutive, rescales."""
        return access_pattern.view(self, as_dtype(dtype))

    reinterpret_cast = view

    def ap(  # noqa: PLR0913 - the vendor's signature
        self,
        pattern: Any,
        offset: int | None = None,
        scalar_offset: Any = None,
        vector_offset: NkiTensor | None = None,
        indirect_dim: int = 0,
        dtype: Any = None,
    ) -> NkiTensor:
        """A view by [[stride, count], ...] over the storage; this view's own shape is ignored."""
        wanted = self.dtype if dtype is None else as_dtype(dtype)
        runtime = access_pattern.Runtime(scalar_offset, vector_offset, indirect_dim)
        return access_pattern.ap(self, pattern, offset, runtime, wanted)

    def indirect(self, index: Any, num_elem: int | None = None) -> NkiTensor:
        """trn3 only."""
        raise RuleError(".indirect() came with trn3: use .ap(vector_offset=...)", rule="platform")

    def refuse(self) -> NoReturn:
        """Say how tensors are computed with."""
        raise ArgumentError(
            "a tensor has no Python operators, truth, length or elements: compute with nisa.* into "
            "a dst, loop over range(t.shape[0]); t == None is legal",
            rule="operators",
        )

    def __repr__(self) -> str:
        dynamic = ", dynamic" if self.is_indirect() else ""
        name = f"{self.name!r}, " if self.name else ""
        return f"NkiTensor({name}{self.shape}, {self.dtype}, {self.buffer.value}{dynamic})"
