"""Read a checkpoint directory: strict about everything its headers say, lazy about its bytes.

Opening reads the config, the index and the shard headers, and refuses whatever does not fit; only
then can a tensor be had. Tensors are read one by one with plain file reads into their own memory,
so that a process holds the tensors it asked for and nothing else (a mapped file would count too).

Shape legend: O outputs, I inputs of a weight matrix.
"""

from __future__ import annotations

import difflib
import heapq
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dslearn.checkpoint import storage
from dslearn.checkpoint.inventory import Spec, scale_name, tile_size
from dslearn.checkpoint.names import Part, entries, part_of
from dslearn.checkpoint.shards import Stored, locate
from dslearn.checkpoint.verify import present_parts, verify
from dslearn.config import Config
from dslearn.errors import CheckpointError
from dslearn.files import need_directory, readable

if TYPE_CHECKING:
    import torch


class Checkpoint:
    """A checkpoint directory that has passed every header check.

    Args:
        directory: holds config.json and model.safetensors.index.json with its shards (or one
            model.safetensors).

    Attributes:
        config: the parsed `Config`.
        names: every stored tensor in storage order.
        parts: "target", and "draft" or "vision" when those tensors are there.

    Raises:
        ConfigError: a config this library does not implement.
        CheckpointError: files or tensors that are not what the config says; lists the keys.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        need_directory(self.directory)
        self.config = Config.from_file(self.directory)
        self._stored = locate(self.directory)
        self._specs = verify(self.config, self._stored, str(directory))
        self.names: tuple[str, ...] = tuple(self._specs)
        self.parts: tuple[Part, ...] = present_parts(self._stored)
        self._entries = entries(self.config, self.parts)

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors, headers not counted."""
        return sum(spec.nbytes for spec in self._specs.values())

    def spec(self, name: str) -> Spec:
        """Dtype, shape and group of the stored tensor `name`."""
        self._need(name)
        return self._specs[name]

    def location(self, name: str) -> Stored:
        """Shard file, first byte and length of the stored tensor `name`."""
        self._need(name)
        return self._stored[name]

    def is_quantised(self, name: str) -> bool:
        """Whether weight `name` is stored as fp8 or fp4 with a scale."""
        self._need(name)
        return name in self._entries and scale_name(name) in self._specs

    def count(self, by: str = "group") -> dict[str, tuple[int, int]]:
        """Tensors and bytes per line of the byte budget (`by="group"`) or per `by="part"`."""
        result: dict[str, tuple[int, int]] = {}
        for name, spec in self._specs.items():
            key = spec.group if by == "group" else part_of(name)
            number, size = result.get(key, (0, 0))
            result[key] = (number + 1, size + spec.nbytes)
        return result

    def is_per_row(self, name: str) -> bool:
        """Whether quantised weight `name` has a scale per 32 columns of a row, not per tile."""
        return self.is_quantised(name) and (
            self._specs[name].dtype == "I8" or self._entries[name].kind == "rows"
        )

    def tensor(self, name: str, rows: tuple[int, int] | None = None) -> torch.Tensor:
        """The stored tensor as it is on disk: float8, int8 (packed fp4), bfloat16 or float32.

        Args:
            name: a stored tensor.
            rows: `(first, last + 1)` of the leading dimension; only their bytes are read.

        Raises:
            CheckpointError: an unknown name (close ones are suggested), rows outside the tensor,
                or a file that shrank since it was opened.
        """
        import torch

        spec = self.spec(name)
        start, stop = self._range(name, rows)
        buffer = torch.empty(stop - start, dtype=torch.uint8)
        self._read(name, start, buffer.numpy().data)
        shape = spec.shape if rows is None else (rows[1] - rows[0], *spec.shape[1:])
        return buffer.view(storage.TORCH_DTYPES[spec.dtype]).view(shape)

    def dense(self, name: str) -> torch.Tensor:
        """The logical weight as fp32 of its matrix shape, dequantised if it is stored quantised."""
        payload = self.tensor(name)
        if not self.is_quantised(name):
            return payload.float()
        kind = self._entries[name].kind
        return storage.dequantise(kind, payload, self.tensor(scale_name(name)), self.tile)

    @property
    def tile(self) -> int:
        """Side of a weight-scale tile of this checkpoint, 32 or 128."""
        return tile_size(self.config)

    def chunks(self, name: str, size: int = 1 << 23) -> Iterator[bytes]:
        """The bytes of a stored tensor in pieces of at most `size`."""
        total = self.spec(name).nbytes
        for start in range(0, total, size):
            piece = bytearray(min(size, total - start))
            self._read(name, start, memoryview(piece))
            yield bytes(piece)

    def _range(self, name: str, rows: tuple[int, int] | None) -> tuple[int, int]:
        spec = self._specs[name]
        if rows is None:
            return 0, spec.nbytes
        first, last = rows
        if not 0 <= first <= last <= spec.shape[0]:
            raise CheckpointError(f"{name}: rows {first}..{last} of a tensor {list(spec.shape)}")
        width = spec.nbytes // max(spec.shape[0], 1)
        return first * width, last * width

    def _read(self, name: str, offset: int, target: memoryview) -> None:
        where = self._stored[name]
        path, done = self.directory / where.shard, 0
        with readable(path), path.open("rb", buffering=0) as file:
            file.seek(where.start + offset)
            while done < len(target):
                got = file.readinto(target[done:])
                if not got:
                    raise CheckpointError(f"{path} ends inside {name}: it changed, open it again")
                done += got

    def _need(self, name: str) -> None:
        if name not in self._specs:
            close = difflib.get_close_matches(name, self._near(name), n=3, cutoff=0.5)
            hint = f"; did you mean {', '.join(close)}?" if close else ""
            raise CheckpointError(f"{self.directory}: no tensor {name!r}{hint}")

    def _near(self, name: str) -> list[str]:
        # letter by letter with all 96,085 names takes seconds: equal components narrow them first
        parts = name.split(".")

        def equal(other: str) -> tuple[int, int]:
            same = sum(map(str.__eq__, parts, other.split(".")))
            return same, -abs(len(other) - len(name))

        return heapq.nlargest(100, self.names, key=equal)
