"""Graphs on disk: built by one process, loaded by the others, checked when they are read.

Ranks that run the same program ask for the same graphs at the same time. The first to lock a graph
builds it; the rest wait at the lock and find the file. A process that dies gives its lock back.
"""

from __future__ import annotations

import fcntl
import logging
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from dslearn.errors import UsageError
from dslearn.regions.written import Written, from_bytes, to_bytes

How = Literal["hit", "load", "miss"]
_log = logging.getLogger(__name__)


class GraphCache:
    """The graphs of one folder.

    Attributes:
        counts: "hit" in this process's memory, "load" from disk, "miss": built; "corrupt" files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.counts: Counter[str] = Counter()
        self._known: dict[str, Written] = {}

    def get(self, key: str, build: Callable[[], Written]) -> tuple[Written, How]:
        """The graph called `key`, and where it came from; `build` makes it if nobody has.

        Raises:
            UsageError: the folder cannot be used. Whatever `build` raises.
        """
        written, how = self._find(key, build)
        self.counts[how] += 1
        self._known[key] = written
        return written, how

    def _find(self, key: str, build: Callable[[], Written]) -> tuple[Written, How]:
        if key in self._known:
            return self._known[key], "hit"
        with self._locked(key):
            found = self._read(key)
            if found is not None:
                return found, "load"
            written = build()
            self._write(key, to_bytes(written))
            return written, "miss"

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.graph"

    def _read(self, key: str) -> Written | None:
        path = self._path(key)
        if not path.exists():
            return None
        with self._told():
            found = from_bytes(path.read_bytes())
        if found is None:
            self.counts["corrupt"] += 1
            _log.warning("%s is damaged: its graph is built again", path)
        return found

    def _write(self, key: str, data: bytes) -> None:
        # Under another name first: nobody ever reads half a file.
        with self._told():
            handle, name = tempfile.mkstemp(dir=self.folder, prefix=key)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                os.replace(name, self._path(key))
            finally:
                Path(name).unlink(missing_ok=True)

    @contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        with self._told():
            self.folder.mkdir(parents=True, exist_ok=True)
            file = (self.folder / f"{key}.lock").open("w")
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)  # given back when the file is closed
            yield

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UsageError(
                f"the graph cache {self.folder} cannot be used: {error}; set DSLEARN_CACHE_DIR to "
                "a folder that can be read and written"
            ) from error
