"""Every exception dslearn raises on wrong input, one class per kind of thing that was wrong.

All of them are `ValueError`s whose text says what was given, what is allowed and what to do;
`docs/errors.md` lists the messages. The command line prints the text alone and exits with 2.
"""


class DslearnError(ValueError):
    """Base class: catch this to catch everything dslearn raises on purpose."""


class FormatError(DslearnError):
    """Numbers, blocks, tiles or cache records that the format cannot hold."""


class ConfigError(DslearnError):
    """A config.json that names something this library does not implement."""


class CheckpointError(DslearnError):
    """A checkpoint directory whose tensors are not what its config says."""


class StateError(DslearnError):
    """A decoding state used past its length, or rolled back further than it remembers."""


class UsageError(DslearnError):
    """A call or a command with arguments that make no sense."""


class BackendError(DslearnError):
    """A backend that was asked for and cannot serve."""


class KernelError(DslearnError):
    """A kernel that the hardware, or its language, would refuse; `dslearn.sim.rules` refines it."""


class GraphError(DslearnError):
    """A region that cannot be compiled as it stands, or is compiled after `warm()`."""
