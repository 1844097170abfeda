"""Assembles the modules `nki`, `nki.language`, `nki.isa`, ... from the parts of the simulator.

A function of dslearn/sim/isa or dslearn/sim/language becomes public when `data/nki_api.json` lists
its name; everything else those files define is internal. Source: docs/reference/nki.md, "Calls".
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType
from typing import Any

from dslearn.sim import collectives, isa, language
from dslearn.sim.binding import bound
from dslearn.sim.dtypes import DTYPES, DType
from dslearn.sim.isa import enums
from dslearn.sim.jit import Kernel, jit, simulate
from dslearn.sim.language.allocate import TileSize, tile_size
from dslearn.sim.language.programs import NKIObject
from dslearn.sim.language.tokens import TOKENS
from dslearn.sim.memory import MemoryRegion
from dslearn.sim.program import NkiInstruction
from dslearn.sim.registers import VirtualRegister
from dslearn.sim.removed import unknown
from dslearn.sim.rules import NkiValidationError
from dslearn.sim.signatures import public_names
from dslearn.sim.tensor import NkiTensor
from dslearn.vendor import STAND_IN_MARK

VERSION = "0.6.0"
TARGET, GENERATION = "trn2", enums.nc_version.gen3
ENUMS = (
    enums.engine, enums.reduce_cmd, enums.dge_mode, enums.oob_mode, enums.matmul_perf_mode,
    enums.nc_version, enums.dma_engine,
)  # fmt: skip


def _defined(package: ModuleType) -> Iterator[FunctionType]:
    """Every function that a file of `package` defines."""
    for entry in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        module = importlib.import_module(entry.name)
        for value in vars(module).values():
            if isinstance(value, FunctionType) and value.__module__ == module.__name__:
                yield value


def public(package: ModuleType, name: str) -> dict[str, Callable[..., Any]]:
    """The functions of `package` that module `name` publishes, refusing calls that do not bind."""
    wanted = public_names(name)
    short = {"nki.isa": "nisa", "nki.language": "nl"}[name]
    return {
        f.__name__: bound(f, f"{short}.{f.__name__}")
        for f in _defined(package)
        if f.__name__ in wanted
    }


def _isa() -> dict[str, Any]:
    aliases = {
        f"{e}_engine": enums.engine[e] for e in ("tensor", "vector", "scalar", "gpsimd", "unknown")
    }
    kinds = (NkiInstruction, NkiValidationError, VirtualRegister)
    return {**public(isa, "nki.isa"), **aliases, **_named(*ENUMS, *kinds)}


def _language() -> dict[str, Any]:
    regions = {region.name: region for region in MemoryRegion}
    kinds = _named(DType, MemoryRegion, NKIObject, NkiTensor)
    functions = public(language, "nki.language")
    sizes = {"tile_size": tile_size, "_TileSize": TileSize, "hbm": MemoryRegion.private_hbm}
    return {**functions, **TOKENS, **DTYPES, **regions, **kinds, **sizes}


def _named(*classes: type) -> dict[str, type]:
    return {kind.__name__: kind for kind in classes}


class _Annotation:
    """`nt.tensor[128, 512]` in a signature: documentation, nothing is checked."""

    def __getitem__(self, shape: Any) -> _Annotation:
        return self


def simulate_kernel(func: Any, args: Any = (), kwargs: Any = None, _lnc: int = 1) -> Any:
    """Simulate `func(*args, **kwargs)` on `_lnc` cores."""
    kernel: Kernel = simulate(func)
    return kernel[_lnc](*args, **(kwargs or {}))


def build() -> dict[str, ModuleType]:
    """All modules by name, parents before children; nothing is registered yet."""
    contents: dict[str, dict[str, Any]] = {
        "nki": {"jit": jit, "simulate": simulate, "__version__": VERSION},
        "nki.language": _language(),
        "nki.isa": _isa(),
        "nki.isa.constants": _named(*ENUMS),
        "nki.collectives": {**collectives.functions(), **_named(collectives.ReplicaGroup)},
        "nki.typing": {"tensor": _Annotation(), "Tensor": NkiTensor},
        "nki.simulator": {"simulate_kernel": simulate_kernel},
        "nki.compiler": {},
        "nki.compiler.target": {
            "resolve_target": lambda: TARGET,
            "target_to_nc_version": lambda target=TARGET: GENERATION,
        },
    }
    made: dict[str, ModuleType] = {}
    for name, content in contents.items():
        made[name] = module = _module(name, content)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(made[parent], child, module)
    return made


def _module(name: str, content: dict[str, Any]) -> ModuleType:
    module = ModuleType(name, f"dslearn's stand-in for {name} {VERSION}.")
    module.__spec__ = ModuleSpec(name, None, origin="dslearn.sim", is_package=True)
    module.__path__ = []
    vars(module).update(content)
    setattr(module, STAND_IN_MARK, True)

    def missing(attribute: str) -> Any:
        if attribute.startswith("__"):  # what Python and its tools ask modules for
            raise AttributeError(f"module '{name}' has no attribute '{attribute}'", name=attribute)
        raise unknown(name, attribute)

    module.__getattr__ = missing  # type: ignore[method-assign]
    return module
