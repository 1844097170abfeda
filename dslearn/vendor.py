"""Which of the vendor's packages are here, and are they the real ones?

PyPI holds placeholders under the same names: `importlib.util.find_spec` finds them and importing
them raises. So a package counts as real only when the attributes that dslearn would use are
there, looked up inside `try`. Source: docs/troubleshooting.md, "Backends and vendor packages".
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

INDEX = "https://pip.repos.neuron.amazonaws.com"
STAND_IN_MARK = "__dslearn_stand_in__"  # set on modules that dslearn itself registers
Status = Literal["real", "absent", "placeholder", "stand-in", "unknown", "broken"]

# Import name -> (distribution on the vendor's index, attributes that only the real one has).
PACKAGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "nki": ("nki", ("isa.nc_matmul", "language.fori_loop")),
    "torch_neuronx": ("torch-neuronx", ("nki_hop.wrap_nki",)),
    "neuronxcc": ("neuronx-cc", ("__version__",)),
}


@dataclass(frozen=True)
class Probe:
    """What importing `package` showed: a status and one sentence that says why."""

    package: str
    status: Status
    detail: str

    @property
    def real(self) -> bool:
        """Whether the vendor's own package answered with every attribute dslearn would use."""
        return self.status == "real"


def probe(package: str) -> Probe:
    """Import `package`, a key of `PACKAGES`, and look its attributes up; never raises for it.

    Raises:
        KeyError: `package` is not in `PACKAGES`.
    """
    distribution, attributes = PACKAGES[package]
    try:
        module = import_module(package)
        if getattr(module, STAND_IN_MARK, False):
            return Probe(package, "stand-in", "dslearn's own stand-in, not the vendor's package")
        missing = [name for name in attributes if not _has(module, name)]
    except Exception as error:  # a broken install may raise anything
        return _failed(package, distribution, error)
    if missing:
        lacks = f"a package of this name without {', '.join(missing)}: not the vendor's"
        return Probe(package, "unknown", f"{lacks}, or too old; {_remedy(distribution)}")
    return Probe(package, "real", str(getattr(module, "__version__", "version not given")))


def neuron_device() -> tuple[bool, str]:
    """Whether a Neuron device answers, and the reason in one sentence."""
    found = probe("torch_neuronx")
    if not found.real:
        return False, f"no Neuron device: torch_neuronx is {found.status}"
    try:
        torch: Any = import_module("torch")
        known = "neuron" in import_module("torch._dynamo").list_backends(exclude_tags=())
        count = int(torch.neuron.device_count())
    except Exception as error:
        return False, f"torch_neuronx is real, but asking it for devices failed: {_short(error)}"
    if not known:
        return False, "torch_neuronx is real, but 'neuron' is no torch.compile backend here"
    return count > 0, f"torch_neuronx is real and counts {count} devices"


def _has(module: Any, dotted: str) -> bool:
    """Whether `module.a.b` exists; `a` may be a submodule nobody has imported yet."""
    *parents, last = dotted.split(".")
    for name in parents:
        try:
            module = import_module(f"{module.__name__}.{name}")
        except ModuleNotFoundError:
            module = getattr(module, name, None)
        if module is None or getattr(module, STAND_IN_MARK, False):
            return False
    return hasattr(module, last)


def _failed(package: str, distribution: str, error: Exception) -> Probe:
    if isinstance(error, ModuleNotFoundError) and error.name == package:
        return Probe(package, "absent", "not installed; only a Trainium machine needs it")
    if "WRONG PACKAGE" in str(error).upper():
        return Probe(package, "placeholder", f"PyPI's placeholder; {_remedy(distribution)}")
    return Probe(package, "broken", f"import failed: {_short(error)}")


def _remedy(distribution: str) -> str:
    vendors = f"pip install --extra-index-url {INDEX} {distribution}"
    return f"pip uninstall {distribution}, then {vendors}"


def _short(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:160]}"
