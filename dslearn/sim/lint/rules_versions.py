"""What older releases had, and what trn2 does not have.

Source: docs/reference/nki.md, "Versions" and "Language rules".
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from dslearn.sim.lint.module import Module
from dslearn.sim.lint.rule import Hit, Rule
from dslearn.sim.lint.scope import Scope, known_calls, short, text

# What was removed -> what takes its place.
REMOVED = {
    "nki.language.arange": "slice the tensor, or use nl.ds(start, size)",
    "nki.language.mgrid": "slice the tensor, or use nl.ds(start, size)",
    "nki.language.par_dim": "write the shape plainly: axis 0 is the partition axis",
    "nki.isa.tensor_copy_dynamic_src": "use tensor_copy with src.ap(..., scalar_offset=...)",
    "nki.isa.tensor_copy_dynamic_dst": "use tensor_copy with dst.ap(..., scalar_offset=...)",
    "nki.simulate_kernel": "use nki.simulate(kernel)(...)",
    "nki.baremetal": "call the kernel with NumPy arrays",
    "nki.benchmark": "profile the compiled program with the vendor's tools",
}

RULES = (
    Rule(
        id="removed-name",
        level="error",
        what="names of earlier releases are gone",
        why="they raise AttributeError since 0.3 or 0.4",
        fix="write it in the 0.6 dialect",
        fires="nl.arange(4)",
        legal="nl.ds(0, 4)",
    ),
    Rule(
        id="removed-module",
        level="error",
        what="kernels import `nki`, not `neuronxcc.nki`",
        why="the old package is an error in kernels since 0.4",
        fix="import nki, nki.language as nl, nki.isa as nisa",
        fires="import neuronxcc.nki.language as old\n\n\n@nki.jit\ndef kernel(x):\n    return x",
        legal="import nki.language as new\n\n\n@nki.jit\ndef kernel(x):\n    return x",
    ),
    Rule(
        id="removed-mask",
        level="error",
        what="no `mask=`",
        why="instructions work on exactly the elements they are given",
        fix="slice the operands to the valid part, or use affine_select or range_select",
        fires="nisa.tensor_copy(dst=tile, src=tile, mask=n)",
        legal="nisa.tensor_copy(dst=tile[:, 0:n], src=tile[:, 0:n])",
    ),
    Rule(
        id="deprecated-range",
        level="warn",
        what="loops over compile-time numbers use range()",
        why="affine_range, sequential_range and static_range are aliases of it: all unroll",
        fix="use range()",
        fires="for i in nl.affine_range(2):\n    n = i",
        legal="for i in range(2):\n    n = i",
    ),
    Rule(
        id="trn3-only",
        level="error",
        what="trn2 has no MX formats, no abs_max, no exponential and no DMA priority",
        why="the instruction, format or operand came with the next generation",
        fix="rewrite it with what trn2 has, or put it under a test of nisa.get_nc_version()",
        fires="nisa.exponential(dst=tile, src=tile)",
        legal="nisa.activation(dst=tile, op=nl.exp, data=tile)",
    ),
    Rule(
        id="fp8-e4m3fn",
        level="warn",
        what="trn2 does not compute with float8_e4m3fn",
        why="its fp8 is IEEE e4m3: at most 240, and codes above are inf and NaN",
        fix="scale the weights to 240 or below and declare them nl.float8_e4m3",
        fires="codes = nl.ndarray((128, 4), dtype=nl.float8_e4m3fn, buffer=nl.sbuf)",
        legal="codes = nl.ndarray((128, 4), dtype=nl.float8_e4m3, buffer=nl.sbuf)",
    ),
    Rule(
        id="fp8-limit",
        level="warn",
        what="values are clamped to 240 before a cast to fp8, not to 448",
        why="448 is the limit of e4m3fn; 241 to 448 become inf or NaN on trn2",
        fix="clamp to 240.0 and -240.0",
        fires="nisa.tensor_scalar(dst=tile, data=tile, op0=nl.minimum, operand0=448.0)",
        legal="nisa.tensor_scalar(dst=tile, data=tile, op0=nl.minimum, operand0=240.0)",
    ),
    Rule(
        id="no-divide",
        level="error",
        what="no nl.divide, nl.mod or nl.fmod",
        why="no engine divides",
        fix="multiply by nisa.reciprocal; bitwise_and takes remainders by powers of two",
        fires="nisa.tensor_scalar(dst=tile, data=tile, op0=nl.divide, operand0=3.0)",
        legal="nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=1.0 / 3.0)",
    ),
    Rule(
        id="matmul-transpose",
        level="error",
        what="nl.matmul only with transpose_x=True",
        why="the tensor engine takes its stationary operand transposed; nl.matmul does not do it",
        fix="pass x with the contraction on axis 0 and transpose_x=True, or use nisa.nc_matmul",
        fires="nl.matmul(tile, tile)",
        legal="nl.matmul(tile, tile, transpose_x=True)",
    ),
)

_RANGES = frozenset(f"nki.language.{kind}_range" for kind in ("affine", "sequential", "static"))
_DIVIDE = frozenset(f"nki.language.{name}" for name in ("divide", "mod", "fmod"))
_TRN3 = frozenset(
    [f"nki.isa.{n}" for n in ("nc_matmul_mx", "quantize_mx", "exponential", "activate2", "rand2")]
    + [f"nki.language.{n}" for n in ("abs_max", "abs_min", "float8_e8m0fnu")]
    + [f"nki.language.{n}_x4" for n in ("float8_e5m2", "float8_e4m3fn", "float4_e2m1fn")]
)
_UNARY = ("nki.language.square", "nki.language.relu")


def check(scope: Scope) -> Iterator[Hit]:
    """Old spellings, and what only later hardware has."""
    for node, name in scope.references:
        if name in _RANGES:
            yield Hit("deprecated-range", node, short(name))
        elif name == "nki.language.dynamic_range":
            yield Hit("deprecated-range", node, short(name), "use nl.fori_loop(lower, upper, body)")
        elif name in _DIVIDE:
            yield Hit("no-divide", node, short(name))
        elif name in _TRN3 and not scope.guarded(node):
            yield Hit("trn3-only", node, f"{short(name)} is not on trn2")
        elif name == "nki.language.float8_e4m3fn" and not scope.guarded(node):
            yield Hit("fp8-e4m3fn", node, short(name))
    for call, name in scope.calls:
        words = {keyword.arg: keyword.value for keyword in call.keywords}
        if "mask" in words and name.startswith(("nki.isa.", "nki.language.")):
            yield Hit("removed-mask", words["mask"], f"mask= in {short(name)}")
        indirect = isinstance(call.func, ast.Attribute) and call.func.attr == "indirect"
        if indirect and scope.kinds.of(getattr(call.func, "value", None)) == "tile":
            yield Hit("trn3-only", call, f"`{text(call)}` is not on trn2")
    yield from _operands(scope)


def _operands(scope: Scope) -> Iterator[Hit]:
    for call, signature, given in known_calls(scope):
        name = signature.name
        priority = given.get("priority")
        asked = priority is not None and text(priority) != "None"
        if priority is not None and asked and not scope.guarded(call):
            yield Hit("trn3-only", priority, f"priority= in {short(name)}")
        if name == "nki.language.matmul":
            flag = given.get("transpose_x")
            if flag is None or (isinstance(flag, ast.Constant) and not flag.value):
                yield Hit("matmul-transpose", call, f"`{text(call)}`")
        for number in ("0", "1"):
            op = scope.module.resolve(given.get("op" + number))
            if name == "nki.isa.tensor_scalar" and op in _UNARY and not scope.guarded(call):
                yield Hit("trn3-only", call, f"op{number}={short(op)} in nisa.tensor_scalar")
            operand = given.get("operand" + number)
            clamps = op in ("nki.language.minimum", "nki.language.maximum")
            if clamps and operand is not None and _constant(operand) in (448, -448):
                yield Hit("fp8-limit", operand, f"{short(op)} with {text(operand)}")


def _constant(node: ast.expr) -> float | None:
    sign = -1 if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) else 1
    node = node.operand if isinstance(node, ast.UnaryOp) else node
    value = node.value if isinstance(node, ast.Constant) else None
    return sign * value if isinstance(value, int | float) else None


def check_module(module: Module, has_kernels: bool) -> Iterator[Hit]:
    """Old imports and names anywhere in a file, host code included."""
    for node in module.nodes:
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        old = next((name for name in names if name.startswith("neuronxcc.nki")), None)
        # an import that may fail is a fallback for older installations
        if old and has_kernels and not any(isinstance(u, ast.Try) for u in module.ancestors(node)):
            yield Hit("removed-module", node, f"`{text(node)}`")
        if isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load):
            name = module.resolve(node)
            if name in REMOVED:
                yield Hit("removed-name", node, f"{short(name)} was removed", REMOVED[name])
