"""What a checkpoint directory cannot give: files that do not open, names of no directory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISDIR

from dslearn.errors import CheckpointError


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Around what looks for, opens or reads files of a checkpoint; `path` where it is not known.

    Raises:
        CheckpointError: the system refuses; names the file and says what the system says.
    """
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"{error.filename or path}: {error.strerror or error}; make it readable, or give "
            "another checkpoint directory"
        ) from error


def need_directory(path: Path, ships: bool = False) -> None:
    """Refuse what is no directory; `ships` where the name of a shipped model is taken too.

    Raises:
        CheckpointError: a file, nothing at all, or a place that may not be looked into.
    """
    mode = 0
    # Not is_dir(): from Python 3.14 on it says no where the system refuses to look.
    with readable(path), suppress(FileNotFoundError, NotADirectoryError, ValueError):
        mode = path.stat().st_mode
    if S_ISDIR(mode):
        return
    if mode:
        raise CheckpointError(f"{path} is a file; give the directory that holds it")
    hint = ", or 'tiny', which ships" if ships else ""
    raise CheckpointError(f"{path}: no such directory; give a checkpoint directory{hint}")
