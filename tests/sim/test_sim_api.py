"""The stand-in has every published name with the published signature, and refuses other calls."""

from __future__ import annotations

import enum
import inspect
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dslearn.sim import modules, removed
from dslearn.sim.binding import bound
from dslearn.sim.dtypes import DType
from dslearn.sim.memory import MemoryRegion
from dslearn.sim.rules import ArgumentError
from tests.support.sim import HBM, expect_refusal, filled

API = json.loads((Path(modules.__file__).parent / "data" / "nki_api.json").read_text())
NAMES = [m for m in API if isinstance(API[m], dict)]
FUNCTIONS = [(m, f) for m in NAMES for f in API[m]["functions"]]
CLASSES = [(m, c) for m in NAMES for c in API[m]["classes"]]
# Handles that kernels never construct: the stand-in builds them from what it knows.
CONSTRUCTORS = {"NkiTensor.__init__", "NkiInstruction.__init__"}


@pytest.fixture(scope="module")
def nki() -> dict[str, ModuleType]:
    return modules.build()


def shown(default: Any) -> str:
    """A default value as the published list writes it."""
    if isinstance(default, MemoryRegion):
        return default.name
    if isinstance(default, enum.Enum):
        return f"{type(default).__name__}.{default.name}"
    if isinstance(default, DType):
        return str(default)
    return getattr(default, "op", None) or repr(default)


def rendered(function: Any, skip: int = 0) -> list[str]:
    out = []
    for p in list(inspect.signature(function).parameters.values())[skip:]:
        star = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        text = "" if p.default is p.empty else f"={shown(p.default)}"
        out.append(f"{star}{p.name}{text}")
    return out


@pytest.mark.parametrize("module, name", FUNCTIONS)
def test_every_function_has_the_published_signature(nki, module, name):
    published = API[module]["functions"][name]
    mine = rendered(getattr(nki[module], name))
    elided = [b.removesuffix("...") if b.endswith("=...") else "" for b in published]
    same = [a == b or (e and a.startswith(e)) for a, b, e in zip(mine, published, elided)]  # noqa: B905
    assert len(mine) == len(published) and all(same), f"{mine}, published {published}"


@pytest.mark.parametrize("module, name", CLASSES)
def test_every_class_has_the_published_members_and_methods(nki, module, name):
    kind, published = getattr(nki[module], name), API[module]["classes"][name]
    missing = [m for m in [*published["members"], *published["methods"]] if not hasattr(kind, m)]
    assert isinstance(kind, type) and not [m for m in missing if not _is_slot(kind, m)]
    for method, parameters in published["methods"].items():
        value = getattr(kind, method, None)
        if inspect.isfunction(value) and f"{name}.{method}" not in CONSTRUCTORS:
            assert rendered(value, skip=1) == parameters, f"{name}.{method}"


def _is_slot(kind: type, member: str) -> bool:
    return member in getattr(kind, "__slots__", ())


@pytest.mark.parametrize("module", NAMES)
def test_every_other_published_name_exists(nki, module):
    missing = [n for n in API[module]["names"] if not hasattr(nki[module], n)]
    assert not missing


def test_documented_aliases(nki):
    nl, nisa = nki["nki.language"], nki["nki.isa"]
    assert nl.hbm is nl.private_hbm
    assert nisa.vector_engine is nisa.engine.vector and nisa.gpsimd_engine is nisa.engine.gpsimd
    assert nki["nki.isa.constants"].oob_mode is nisa.oob_mode
    assert nl.NkiTensor.reinterpret_cast is nl.NkiTensor.view
    assert (nl.float32, nl.bfloat16) == ("float32", "bfloat16")
    assert (nl.tile_size.pmax, nl.tile_size.psum_fmax, nl.tile_size.gemm_moving_fmax) == (
        128, 512, 512,
    )  # fmt: skip
    target = nki["nki.compiler.target"]
    assert target.target_to_nc_version(target.resolve_target()) == nisa.get_nc_version()
    assert nisa.nc_version.gen2 < nisa.get_nc_version() < nisa.nc_version.gen4


@pytest.mark.parametrize("module", list(removed.REMOVED))
def test_removed_names_say_what_replaces_them(nki, module):
    for name, instead in removed.REMOVED[module].items():
        with expect_refusal("name", name, instead, kind=AttributeError):
            getattr(nki[module], name)
    with expect_refusal("name", "no attribute 'frobnicate'", kind=AttributeError):
        nki[module].frobnicate  # noqa: B018
    assert not hasattr(nki[module], "__wrapped__")


def test_calls_that_do_not_bind_name_the_function_and_its_parameters(nki):
    nl, nisa = nki["nki.language"], nki["nki.isa"]
    tile = nl.ndarray((2, 2), nl.float32)
    cases = [
        (lambda: nisa.memset(dst=tile, value=0, mask=None), "nisa.memset() got an unexpected"),
        (lambda: nisa.memset(dst=tile), "missing 1 required positional argument: 'value'"),
        (lambda: nl.add(tile), "nl.add() missing 1 required"),
        (lambda: nl.exp(tile, mask=None), "nl.exp() got an unexpected keyword argument 'mask'"),
        (lambda: nl.ndarray((2, 2)), "it takes shape, dtype, buffer, name, address"),
    ]
    for call, words in cases:
        with expect_refusal("arguments", words, kind=TypeError):
            call()
    nisa.memset(dst=tile, value=0)
    assert nl.exp(x=tile) is not tile


def test_type_errors_inside_a_call_stay_what_they_are():
    def broken(x: int) -> int:
        return x + "1"  # type: ignore[operator]

    with pytest.raises(TypeError) as caught:
        bound(broken, "nl.broken")(1)
    assert not isinstance(caught.value, ArgumentError)


def test_collectives_bind_and_say_that_they_are_not_simulated(nki):
    cc = nki["nki.collectives"]
    group = cc.ReplicaGroup([[0, 1]])
    x = filled([[1.0]], HBM, "float32")
    with expect_refusal("not-simulated", "nki.collectives.all_reduce", kind=NotImplementedError):
        cc.all_reduce(srcs=[x], dsts=[x], replica_group=group, op=None)
    with expect_refusal("arguments", "all_gather", kind=TypeError):
        cc.all_gather(srcs=[x])


def test_typing_annotations_are_documentation(nki):
    nt = nki["nki.typing"]
    assert nt.tensor[128, 512] is nt.tensor
