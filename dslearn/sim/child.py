"""Calls a function in a child process, in which `nki` is the stand-in.

Where the vendor's package is installed it answers `import nki`: it records nothing and checks less
than dslearn does. Two packages of one name do not fit into one process, so whatever checks or
models a kernel there calls itself in another.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dslearn.errors import BackendError, DslearnError
from dslearn.sim.install import install

# `-c` and not `-m`: the child finds modules where this process finds them.
_START = "import sys; sys.path[:] = {path!r}; from dslearn.sim.child import serve; serve({file!r})"


def call(target: str, *arguments: Any) -> Any:
    """What `target`, written `module:function`, returns for `arguments` on the stand-in.

    Arguments and the result are pickled; what the function prints appears as usual.

    Raises:
        DslearnError: whatever the function raises of that kind.
        BackendError: the process ended in another way; what it said is on stderr.
    """
    with TemporaryDirectory(prefix="dslearn-") as folder:
        file = Path(folder) / "call"
        file.write_bytes(pickle.dumps((target, arguments)))
        start = _START.format(path=sys.path, file=str(file))
        done = subprocess.run([sys.executable, "-c", start], stdin=subprocess.DEVNULL)
        if done.returncode:
            raise BackendError(
                f"the process in which {target} ran on the stand-in ended with {done.returncode}: "
                "what it said is above; -9 means that memory ran out"
            )
        result, error = pickle.loads(file.read_bytes())
    if error is not None:
        raise error
    return result


def serve(file: str) -> None:
    """The child: read the call from `file` and put (result, error) in its place."""
    result, error = None, None
    try:
        install(force=True)
        target, arguments = pickle.loads(Path(file).read_bytes())
        module, _, name = target.partition(":")
        result = getattr(import_module(module), name)(*arguments)
    except DslearnError as raised:
        error = raised
    Path(file).write_bytes(pickle.dumps((result, error)))
