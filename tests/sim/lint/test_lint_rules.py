"""Every rule fires on what breaks it, alone, and leaves its legal twin in peace."""

from __future__ import annotations

import ast
import re

import pytest

from dslearn.sim.lint import RULES
from dslearn.sim.lint.examples import frame
from tests.support.lint import findings, in_kernel, rules

# Further forms: (rule, statements of a kernel that break it, the same thing done legally).
FORMS = [
    ("identity-test", "assert x is not n", "assert x != n"),
    ("identity-test", "n = 1 if None is n else 2", "n = 1 if None == n else 2"),
    ("set-value", "n = len(set([1, 2]))", "n = len(list([1, 2]))"),
    ("set-value", "n = len({k for k in (1, 2)})", "n = len([k for k in (1, 2)])"),
    ("generator", "async def f():\n    return 1", "def f():\n    return 1"),
    ("generator", "def f():\n    yield from (1, 2)", "def f():\n    return (1, 2)"),
    ("dict-key", "d = {i: i for i in range(4)}", "d = {str(i): i for i in range(4)}"),
    ("dict-key", "d = {(0, 1): 2}", 'd = {"0 1": 2, **{}}'),
    ("dict-key", "d = {nisa.engine.vector: 1}", "d = {nl.float32: 1}"),
    ("dict-key", "d = {}\nd[3] = 1", "d = []\nd[3] = 1"),
    ("dict-key", "d = dict()\nfor i in range(2):\n    d[i] = 1", 'd = dict()\nd["i"] = 1'),
    ("value-range", "n = 1e39", "n = 3.4e38"),
    ("value-range", "n = 2j", "n = 2.0"),
    ("value-range", 'n = b"ab"', 'n = "ab"'),
    ("value-range", "n = 4294967296", "n = (4294967295, -2147483648)"),
    ("enum-order", "n = nisa.dge_mode.none <= nisa.dge_mode.swdge", "n = nisa.dge_mode.none"),
    (
        "enum-order",
        "n = nisa.oob_mode.skip > nisa.oob_mode.error",
        "n = nisa.get_nc_version() >= nisa.nc_version.gen3",
    ),
    ("raw-enum", 'nisa.memset(dst=tile, value=0.0, engine="vector")', "n = 5"),
    (
        "raw-enum",
        "nisa.dma_copy(dst=tile, src=x, dge_mode=1)",
        "nisa.dma_copy(dst=tile, src=x, dge_mode=nisa.dge_mode.swdge)",
    ),
    ("call-signature", "nisa.tensor_copy(dst=tile)", "nisa.tensor_copy(dst=tile, src=tile)"),
    ("call-signature", "nl.ds(0, 4, 2)", "nl.ds(0, 4)"),
    ("call-signature", "nisa.memset(tile, dst=tile, value=0.0)", "nisa.memset(tile, value=0.0)"),
    ("call-signature", "tile.permute(1, 0)", "tile.permute((0, 1))"),
    ("call-signature", "tile.ap(pattern=[[64, 128]], step=1)", "tile.ap(pattern=[[64, 128]])"),
    ("unknown-name", "nisa.matmul", "nisa.nc_matmul"),
    ("unknown-name", "n = nl.tile_size.pmin", "n = nl.tile_size.pmax"),
    ("unknown-name", "tile.T", "tile.shape"),
    ("unknown-name", "tile[0:4].astype(nl.int8)", "tile[0:4].view(nl.int8)"),
    ("removed-name", "n = nl.mgrid[0:4, 0:4]", "n = tile[0:4, 0:4]"),
    ("removed-name", "nl.ndarray((2, nl.par_dim(128)), nl.int8)", "nl.ndarray((2, 128), nl.int8)"),
    ("removed-name", "nisa.tensor_copy_dynamic_src(dst=tile)", "nisa.tensor_copy(tile, src=tile)"),
    ("deprecated-range", "for i in nl.static_range(2):\n    n = i", "n = range(2)"),
    ("deprecated-range", "for i in nl.dynamic_range(2):\n    pass", "n = range(2)"),
    ("trn3-only", "nl.ndarray((4, 4), dtype=nl.float4_e2m1fn_x4)", "nl.ndarray((4, 4), nl.int8)"),
    (
        "trn3-only",
        "nisa.dma_copy(dst=tile, src=x, priority=1)",
        "nisa.dma_copy(dst=tile, src=x, priority=None)",
    ),
    ("trn3-only", "tile.indirect(tile)", "tile.select(1, 0)"),
    (
        "trn3-only",
        "nisa.tensor_scalar(dst=tile, data=tile, op0=nl.relu, operand0=0.0)",
        "nisa.activation(dst=tile, op=nl.relu, data=tile)",
    ),
    (
        "trn3-only",
        "nisa.tensor_tensor(dst=tile, data1=tile, data2=tile, op=nl.abs_max)",
        "if nisa.get_nc_version() >= nisa.nc_version.gen4:\n"
        "    nisa.tensor_tensor(dst=tile, data1=tile, data2=tile, op=nl.abs_max)",
    ),
    (
        "fp8-limit",
        "nisa.tensor_scalar(dst=tile, data=tile, op0=nl.maximum, operand0=-448)",
        "nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=448)",
    ),
    ("no-divide", "nl.mod(tile, 2)", "nl.multiply(tile, 2)"),
    ("matmul-transpose", "nl.matmul(tile, tile, transpose_x=False)", "nl.transpose(tile)"),
    ("tile-arithmetic", "tile += 1.0", "n += 1"),
    ("tile-arithmetic", "y = -tile[0:2]", "y = -n"),
    ("tile-arithmetic", "y = 1.0 / nl.load(x)", "y = 1.0 / n"),
    ("tile-arithmetic", "n = 1 if tile > 0 else 2", "n = 1 if tile == None else 2"),
    ("tile-arithmetic", "y = tile.reshape((64, 128)) + n", "y = tile.shape[0] + n"),
    ("tile-value", "n = int(tile[0, 0])", "n = int(tile.shape[0])"),
    ("tile-value", "for i in range(tile):\n    pass", "for i in range(tile.ndim):\n    pass"),
    ("register-control", "r = nisa.register_alloc(2)\nwhile r:\n    pass", "n = 5"),
    ("register-control", "r = nisa.register_alloc(2)\nn = range(r)", "n = range(n)"),
    ("register-control", "n = bool(nisa.register_alloc())", "n = bool(n)"),
    ("loop-form", "nl.fori_loop(0, 4, lambda: 1)", "nl.fori_loop(0, 4, lambda i: 1)"),
    ("loop-form", "y = nl.fori_loop(0, 4, lambda i: 1)", "nl.fori_loop(0, 4, lambda i, t=n: t)"),
    (
        "loop-form",
        "nl.fori_loop(0, 4, lambda i: 1, step=-1)",
        "nl.fori_loop(0, 4, lambda i: 1, step=2)",
    ),
    (
        "lnc-divergence",
        "core = nl.program_id(0)\nif core + 1 == 2:\n    nisa.memset(tile, value=0.0)",
        "core = nl.program_id(0)\nif core + 1 == 2:\n    n = 3",
    ),
    ("launch-grid", "nl.program_id(1)", "nl.program_id(axis=0)"),
    ("impure-write", "def f():\n    global N\n    N = 1", "def f():\n    nonlocal n\n    n = 1"),
    ("return-buffer", "return x.shape, tile[0:4]", "return x"),
    ("return-buffer", "t = nl.zeros((4, 4), nl.int8)\nreturn t", "t = nl.load(x)\nn = t.shape"),
    ("return-buffer", "return nl.ndarray((4, 4), nl.int8)", "return x[0:4].reshape((4, 4))"),
    ("return-buffer", "return nl.zeros((4, 4), nl.int8, nl.psum).view(nl.uint8)", "return 1, None"),
    ("impure-read", "open('a.txt')", "opened = 'a.txt'"),
    ("return-nested", "", "for i in range(2):\n    y = nl.ndarray((4, 4), nl.int8, nl.shared_hbm)"),
]  # fmt: skip


@pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
def test_the_examples_of_a_rule_break_it_and_do_not(rule, tmp_path):
    broken = findings(tmp_path, frame(rule.fires))
    assert {finding.rule for finding in broken} == {rule.id}, broken
    assert all(finding.level == rule.level for finding in broken)
    assert rules(tmp_path, frame(rule.legal)) == []


@pytest.mark.parametrize(
    ("rule", "broken", "legal"), FORMS, ids=[f"{f[0]}-{i}" for i, f in enumerate(FORMS)]
)
def test_other_forms(rule, broken, legal, tmp_path):
    if broken:
        assert rule in in_kernel(tmp_path, broken), broken
    assert in_kernel(tmp_path, legal) == [], legal


def test_rules_say_what_why_and_what_to_do():
    assert len(RULES) == 46
    for name, rule in RULES.items():
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name), name
        assert all((rule.what, rule.why, rule.fix, rule.fires, rule.legal)), name
        assert not rule.what.endswith(".") and not rule.fix.endswith("."), name
        ast.parse(frame(rule.legal))


def test_a_finding_stands_where_the_mistake_is(tmp_path):
    source = frame("n = 1\nif n is None:\n    n = 2")
    (found,) = findings(tmp_path, source)
    line = source.splitlines().index("    if n is None:") + 1
    assert (found.line, found.column) == (line, 8)
    assert str(found).endswith(
        f":{line}:8: error identity-test: `n is None` (compare with == or !=)"
    )


def test_a_wrong_keyword_is_named_with_what_there_is(tmp_path):
    (found,) = findings(tmp_path, frame("nisa.tensor_copy(dst=tile, source=tile)"))
    assert found.message == "nisa.tensor_copy: unknown keyword 'source'"
    assert found.fix == "it takes dst, src, engine, name"


@pytest.mark.parametrize(
    ("parameters", "body", "broken"),
    [
        ("x: nl.NkiTensor", "x + 1", ["tile-arithmetic"]),
        ("x: nl.NkiTensor | None = None", "x + 1", ["tile-arithmetic"]),
        ("x: nt.tensor[4, 4]", "x + 1", ["tile-arithmetic"]),
        ("x", "x.shape, x + 1", ["tile-arithmetic"]),
        ("x: nl.NkiTensor", "x.T", ["unknown-name"]),
        ("x: nl.NkiTensor", "x = x.reshape((4, 4)); x + 1", ["tile-arithmetic"]),
        ("x: nl.NkiTensor", "(y := x[0:2]) + 1, (x if x.ndim else x) * 2", ["tile-arithmetic"]),
        # no certainty, no finding
        ("x", "x + 1", []),
        ("x: int", "x.shape, x + 1", []),
        ("x", "x.shape, x.eps", []),
        ("self", "self.shape, self.view(1, 2)", []),
        ("x, y", "x = y if y else x.shape; x + 1", []),
    ],
)
def test_what_is_evidently_a_tensor(parameters, body, broken, tmp_path):
    imports = "import nki\nimport nki.language as nl\nimport nki.typing as nt\n"
    if parameters == "self":
        source = f"class A(nl.NKIObject):\n    def __call__(self):\n        {body}\n"
        source += "@nki.jit\ndef kernel(x):\n    A()()\n    return x\n"
    else:
        source = f"@nki.jit\ndef kernel({parameters}):\n    {body}\n    return 1\n"
    assert rules(tmp_path, imports + source) == broken


def test_arguments_behind_stars_are_not_called_missing(tmp_path):
    call = "args = {'src': tile}\nnisa.tensor_copy(dst=tile, **args)\nnisa.memset(*(tile, 0.0))"
    assert in_kernel(tmp_path, call) == []
    assert in_kernel(tmp_path, "nisa.tensor_copy(**{}, source=1)") == ["call-signature"]
