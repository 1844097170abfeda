"""Calls of `nl` and `nisa` against the published signatures.

Source: docs/reference/nki.md, "Calls".
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from dslearn.sim.lint.rule import Hit, Rule
from dslearn.sim.lint.rules_versions import REMOVED
from dslearn.sim.lint.scope import Scope, known_calls, short, text
from dslearn.sim.signatures import (
    TENSOR,
    Signature,
    class_members,
    enum_names,
    public_names,
    signatures,
)

RULES = (
    Rule(
        id="call-signature",
        level="error",
        what="calls of nl, nisa and tensor methods bind to their published signatures",
        why="an unknown keyword is a TypeError, on the device and here",
        fix="compare with the signature",
        fires="nisa.tensor_copy(dst=tile, source=tile)",
        legal="nisa.tensor_copy(dst=tile, src=tile)",
    ),
    Rule(
        id="unknown-name",
        level="error",
        what="nl, nisa and tensors have no names but the published ones",
        why="NKI 0.6 does not define it",
        fix="look the name up; much that NumPy calls otherwise exists",
        fires="nisa.memset(dst=tile, value=0.0, engine=nisa.engine.simd)",
        legal="nisa.memset(dst=tile, value=0.0, engine=nisa.engine.vector)",
    ),
    Rule(
        id="keywords-only",
        level="warn",
        what="everything after an instruction's first argument goes by keyword",
        why="positions change between releases: dma_copy's third became `priority` in 0.4",
        fix="name the arguments",
        fires="nisa.tensor_copy(tile, tile)",
        legal="nisa.tensor_copy(tile, src=tile)",
        house=True,
    ),
    Rule(
        id="string-buffer",
        level="error",
        what="buffers are nl.sbuf, nl.psum and so on, not strings",
        why="names of memory were strings before 0.3",
        fix="write buffer=nl.sbuf",
        fires='nl.ndarray((128, 4), dtype=nl.float32, buffer="sbuf")',
        legal="nl.ndarray((128, 4), dtype=nl.float32, buffer=nl.sbuf)",
    ),
    Rule(
        id="raw-enum",
        level="error",
        what="enum parameters take members of the enum",
        why="numbers were accepted before 0.3",
        fix="write the member, as in nisa.engine.vector",
        fires="nisa.memset(dst=tile, value=0.0, engine=5)",
        legal="nisa.memset(dst=tile, value=0.0, engine=nisa.engine.vector)",
    ),
)


def check(scope: Scope) -> Iterator[Hit]:
    """Calls that do not bind, and arguments of the wrong kind."""
    for call, signature, given in known_calls(scope):
        yield from _binding(call, signature)
        yield from _values(call, signature, given)
        if signature.name.startswith("nki.isa.") and len(call.args) > 1:
            yield Hit("keywords-only", call, f"{len(call.args)} positional in `{text(call)}`")
    for call, _ in scope.calls:
        if isinstance(call.func, ast.Attribute) and scope.kinds.of(call.func.value) == "tile":
            method = signatures().get(f"{TENSOR}.{call.func.attr}")
            if method:
                yield from _binding(call, method)
    yield from _names(scope)


def _binding(call: ast.Call, signature: Signature) -> Iterator[Hit]:
    words = [keyword.arg for keyword in call.keywords if keyword.arg not in (None, "mask")]
    starred = any(isinstance(value, ast.Starred) for value in call.args)
    positional = 0 if starred else len(call.args)
    whole = not starred and all(keyword.arg for keyword in call.keywords)
    wrong = signature.complaint(positional, [w for w in words if w], open_ended=not whole)
    if wrong:
        takes = ", ".join(parameter.name for parameter in signature.parameters)
        name = short(signature.name)
        yield Hit("call-signature", call, f"{name}: {wrong}", f"it takes {takes or 'nothing'}")


def _values(call: ast.Call, signature: Signature, given: dict[str, ast.expr]) -> Iterator[Hit]:
    for name, value in given.items():
        parameter = signature.parameter(name)
        if parameter is None or not isinstance(value, ast.Constant):
            continue
        if name == "buffer" and isinstance(value.value, str):
            yield Hit("string-buffer", value, f"buffer={text(value)} in {short(signature.name)}")
        # 0.3 took perf_mode as a string, and kernels in use still write it so
        elif parameter.enum and isinstance(value.value, int | str) and name != "perf_mode":
            member = f"nisa.{parameter.default}"
            yield Hit("raw-enum", value, f"{name}={text(value)}", f"write a member, as {member}")


def _names(scope: Scope) -> Iterator[Hit]:
    for node in scope.nodes:
        if not isinstance(node, ast.Attribute | ast.Name) or not isinstance(node.ctx, ast.Load):
            continue
        name = scope.module.resolve(node)
        owner, _, last = name.rpartition(".")
        if name in REMOVED or last.startswith("__"):
            continue
        if owner in ("nki.isa", "nki.language"):
            if last not in public_names(owner) and name != "nki.isa.constants":
                yield Hit("unknown-name", node, f"{short(name)} does not exist")
        elif owner in enum_names() or owner == "nki.language.tile_size":
            known = class_members(owner.replace("tile_size", "_TileSize"))
            if last not in known:
                yield Hit(
                    "unknown-name",
                    node,
                    f"{short(owner)} has no {last}",
                    f"choose from {', '.join(sorted(known))}",
                )
        elif isinstance(node, ast.Attribute) and _lacks(scope, node):
            yield Hit("unknown-name", node, f"tensors have no .{node.attr}")


def _lacks(scope: Scope, attribute: ast.Attribute) -> bool:
    """Whether a certain tensor lacks the attribute; unannotated parameters could be anything."""
    node = attribute.value
    if attribute.attr in class_members(TENSOR) or scope.kinds.of(node) != "tile":
        return False
    while isinstance(node, ast.Subscript):
        node = node.value
    values = scope.module.values(node) if isinstance(node, ast.Name) else []
    return not any(isinstance(value, ast.arg) and value.annotation is None for value in values)
