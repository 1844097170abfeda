"""The published parameter lists of NKI 0.6: what may be called, with which keywords.

`data/nki_api.json` holds them as text ("engine=engine.unknown"), in order. Nothing is imported or
run to read them, so the source lint and the stand-in agree on one table.
Source: docs/reference/nki.md, "Calls".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

MODULES = ("nki", "nki.isa", "nki.language", "nki.collectives")
TENSOR = "nki.language.NkiTensor"


@dataclass(frozen=True)
class Parameter:
    """One parameter: its default as published text, or None when it must be given."""

    name: str
    default: str | None

    @property
    def enum(self) -> str:
        """Name of the enum its default belongs to (`engine.unknown` -> `engine`), or ''."""
        head, dot, member = (self.default or "").partition(".")
        return head if dot and head.isidentifier() and member.isidentifier() else ""


@dataclass(frozen=True)
class Signature:
    """A callable's parameters in order; `star` and `kwargs` when it takes any number of them."""

    name: str
    parameters: tuple[Parameter, ...]
    star: bool = False
    kwargs: bool = False

    def parameter(self, name: str) -> Parameter | None:
        """The parameter called `name`, or None."""
        return next((p for p in self.parameters if p.name == name), None)

    def complaint(self, positional: int, keywords: Iterable[str], open_ended: bool = False) -> str:
        """Why a call with so many positional arguments and these keywords does not bind, or ''.

        `open_ended` calls carry `*args` or `**kwargs`, so nothing can be called missing.
        """
        given = list(keywords)
        names = [p.name for p in self.parameters]
        if positional > len(names) and not self.star:
            return f"{positional} positional arguments, it takes {len(names)}"
        for name in given:
            if name not in names and not self.kwargs:
                return f"unknown keyword '{name}'"
        twice = [name for name in names[:positional] if name in given]
        if twice:
            return f"'{twice[0]}' is given twice"
        known = {*names[:positional], *given}
        missing = [p.name for p in self.parameters if p.default is None and p.name not in known]
        if missing and not open_ended:
            return f"missing {', '.join(missing)}"
        return ""


@cache
def signatures() -> Mapping[str, Signature]:
    """Every function and tensor method by dotted name, as in `nki.isa.dma_copy`."""
    found: dict[str, Signature] = {}
    for module in MODULES:
        entry = _table()[module]
        for name, parameters in entry["functions"].items():
            found[f"{module}.{name}"] = _signature(f"{module}.{name}", parameters)
        for owner, description in entry["classes"].items():
            for name, parameters in description["methods"].items():
                full = f"{module}.{owner}.{name}"
                found[full] = _signature(full, parameters)
    return found


@cache
def public_names(module: str) -> frozenset[str]:
    """What `module` (one of MODULES) defines: functions, classes, constants."""
    entry = _table()[module]
    return frozenset([*entry["functions"], *entry["classes"], *entry["names"]])


@cache
def class_members(name: str) -> frozenset[str]:
    """Members and methods of a class such as `nki.isa.engine`; empty when it is not known."""
    module, _, owner = name.rpartition(".")
    entry = _table().get(module, {}).get("classes", {}).get(owner, {})
    return frozenset([*entry.get("members", ()), *entry.get("methods", ())])


@cache
def enum_names() -> frozenset[str]:
    """Dotted names of the enums of `nki.isa` and of the memory regions."""
    isa = _table()["nki.isa"]["classes"]
    return frozenset(
        [f"nki.isa.{name}" for name, entry in isa.items() if entry["members"]]
        + ["nki.language.MemoryRegion"]
    )


@cache
def _table() -> dict[str, Any]:
    text = (Path(__file__).parent / "data" / "nki_api.json").read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


def _signature(name: str, parameters: list[str]) -> Signature:
    plain = tuple(
        Parameter(text.partition("=")[0], text.partition("=")[2] if "=" in text else None)
        for text in parameters
        if not text.startswith("*")
    )
    star = any(text.startswith("*") and not text.startswith("**") for text in parameters)
    return Signature(name, plain, star, any(text.startswith("**") for text in parameters))
