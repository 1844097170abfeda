"""Which functions count as kernel code, across files, and what is left alone."""

from __future__ import annotations

import pytest

from dslearn.sim.lint import lint
from tests.support.lint import IMPORTS, findings, rules

KERNEL = "\n\n@nki.jit\ndef kernel(x):\n    {0}\n    return x\n"
WRONG = "def helper(x):\n    return x is None\n"

# Host code next to kernels that breaks every rule of the language, legally.
HOST = """
import dataclasses, os, random
import numpy as np
import torch

@dataclasses.dataclass(frozen=True)
class Config:
    sizes: dict[int, int]

    def __post_init__(self):
        if self.sizes is None:
            raise ValueError("sizes")

@nki.jit
def kernel(x, n=4):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=x)
    return out

def twin(x, *, eps=None, cache={}):
    '''The NumPy reference.'''
    if eps is None:
        eps = float(os.environ.get("EPS", 1e-300))
    cache[0] = {1, 2}
    return np.asarray(x) / (x.sum() + eps + random.random())

def launch(x: torch.Tensor, config: Config | None = None, lnc: int = 2):
    try:
        tile = nl.ds(0, 4)
        return nki.simulate(kernel[lnc])(x, n=tile is None)
    except (IndexError, ValueError):
        return (part for part in [kernel(x)])

def dtype_of(name):
    return nl.DType(name) if name is not None else nl.float32

def generation():
    return None if nisa.get_nc_version() is None else 2
"""


def test_host_code_beside_a_kernel_is_left_alone(tmp_path):
    assert findings(tmp_path, IMPORTS + HOST) == ()


def test_a_file_without_nki_is_left_alone(tmp_path):
    assert findings(tmp_path, "def f(x, *, y={}):\n    yield x is y\n    return {1}\n") == ()


@pytest.mark.parametrize(
    "source",
    [
        "@nki.jit\ndef kernel(x):\n    return x is None\n",
        "@nki.jit()\ndef kernel(x):\n    return x is None\n",
        "from nki import jit\n@jit\ndef kernel(x):\n    return x is None\n",
        "def kernel(x):\n    return x is None\nrun = nki.jit(kernel)\n",
        "def kernel(x):\n    return x is None\ndef host(x):\n    return nki.jit(kernel)(x)\n",
        "def kernel(x):\n    return x is None\nnki.jit()(kernel)\n",
        "def part(x):\n    nisa.memset(dst=x, value=0.0)\n    return x is None\n",
        "def make(n):\n    @nki.jit\n    def f(x):\n        return x is None\n    return f\n",
        WRONG + KERNEL.format("helper(x)"),
        WRONG.replace("return", "assert") + KERNEL.format("nl.fori_loop(0, 4, helper)"),
        WRONG + "def via(x):\n    return helper(x)\n" + KERNEL.format("via(x)"),
        KERNEL.format("(lambda y: y is None)(x)"),
        "class A(nl.NKIObject):\n    def f(self):\n        return self is None\n"
        + KERNEL.format("A().f()"),
        "class A(nl.NKIObject):\n    def __post_init__(self):\n        assert self is not None\n"
        + KERNEL.format("A()"),
        "try:\n    import nki.language as lang\nexcept ImportError:\n    lang = None\n"
        "def f(x):\n    return lang.load(x) is None\n",
    ],
)
def test_kernel_code_is_found(source, tmp_path):
    assert rules(tmp_path, IMPORTS + source) == ["identity-test"]


@pytest.mark.parametrize(
    "source",
    [
        WRONG + KERNEL.format("pass"),
        WRONG + "\n\n@nki.jit\ndef kernel(x, helper):\n    helper(x)\n    return x\n",
        "def jit(f):\n    return f\n@jit\ndef kernel(x):\n    return x is None\n",
        # an NKIObject made on the host: what kernels do not mention runs there
        "class A(nl.NKIObject):\n    @classmethod\n    def load(cls, path):\n"
        "        return path is None\n\n\n@nki.jit\ndef kernel(x, a: A):\n    return x\n",
        "class Stop(Exception):\n    pass\n" + KERNEL.format("if x.ndim != 2: raise Stop(x.ndim)"),
        "import enum\nclass Kind(enum.Enum):\n    A = 1\n" + KERNEL.format("n = Kind.A == Kind(1)"),
    ],
)
def test_what_is_not_kernel_code(source, tmp_path):
    assert rules(tmp_path, IMPORTS + source) == []


@pytest.mark.parametrize(
    "line",
    [
        "from pack.parts import helper",
        "from .parts import helper",
        "from . import parts\nhelper = parts.helper",
        "from pack.inner import helper",
        "import pack.parts as p\n\ndef helper(x):\n    return p.helper(x)",
    ],
)
def test_calls_are_followed_into_the_package(line, tmp_path):
    pack = tmp_path / "pack"
    (pack / "inner").mkdir(parents=True)
    (pack / "__init__.py").touch()
    (pack / "inner" / "__init__.py").write_text("from ..parts import helper\n")
    (pack / "parts.py").write_text(WRONG + "def unused(x):\n    return x is None\n")
    if line.endswith("parts.helper"):
        line, call = line.split("\n")[0], "parts.helper(x)"
    else:
        call = "helper(x)"
    (pack / "main.py").write_text(f"{IMPORTS}{line}\n{KERNEL.format(call)}")
    found = lint([pack / "main.py"]).findings
    assert [(f.rule, f.path.rpartition("/")[2], f.line) for f in found] == [
        ("identity-test", "parts.py", 2)
    ]


def test_scripts_in_one_folder_are_followed_and_other_packages_are_not(tmp_path):
    (tmp_path / "parts.py").write_text(WRONG)
    kernel = IMPORTS + "from parts import helper\n" + KERNEL.format("helper(x)")
    assert [f.path.rpartition("/")[2] for f in findings(tmp_path, kernel)] == ["parts.py"]
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").touch()
    assert findings(tmp_path, kernel, "pack/kernels.py") == ()


def test_wrapped_at_the_launch_is_not_nested(tmp_path):
    part = "def part(x):\n    nisa.memset(dst=x, value=0.0)\n"
    use = KERNEL.format("part(x)") + "\n\ndef host(x):\n    return nki.jit(part)(x)\n"
    assert rules(tmp_path, IMPORTS + part + use) == []
    inside = KERNEL.format("nki.jit(part)(x)")
    assert rules(tmp_path, IMPORTS + part + inside) == ["nested-jit"]


def test_only_kernels_have_a_signature_that_faces_the_host(tmp_path):
    inner = "def part(x, *, eps, sizes: list = []):\n    nisa.memset(dst=x, value=eps)\n"
    call = KERNEL.format("part(x, eps=1.0, sizes=[1])")
    assert rules(tmp_path, IMPORTS + inner + call) == []


def test_launches_are_seen_through_their_forms(tmp_path):
    kernel = KERNEL.format("pass")
    for line in ("kernel[3](1)", "nki.simulate(kernel[(1,)])(1)", "nki.jit(f)[0](1)"):
        source = f"{IMPORTS}def f(x):\n    return x\n{kernel}\n{line}\n"
        assert rules(tmp_path, source) == ["launch-grid"], line
    for line in ("kernel[2](1)", "n = 1\nkernel[n](1)", "nki.simulate(kernel)(1)", "[1][0]"):
        assert rules(tmp_path, f"{IMPORTS}{kernel}\n{line}\n") == [], line
    assert rules(tmp_path, f"{IMPORTS}{kernel}\nnki.simulate(kernel)([1])\n") == ["list-launch"]


def test_old_packages_and_names_are_seen_on_the_host_too(tmp_path):
    old = "import neuronxcc.nki as nki\nimport neuronxcc.nki.language as nl\n"
    source = old + "@nki.jit\ndef kernel(x):\n    return nl.load(x) is None\n"
    assert rules(tmp_path, source) == ["identity-test", "removed-module"]
    fallback = IMPORTS + "try:\n    import nki\nexcept ImportError:\n    import neuronxcc.nki\n"
    assert rules(tmp_path, fallback + KERNEL.format("pass")) == []
    host = KERNEL.format("pass") + "\nnki.simulate_kernel(kernel, 1)\n"
    assert rules(tmp_path, IMPORTS + host) == ["removed-name"]


@pytest.mark.parametrize(
    ("parameter", "broken"),
    [
        ("n=[1]", ["list-argument"]),
        ("n={'a': 2}", ["argument-kind"]),
        ("n: dict[str, int] = None", ["argument-kind"]),
        ("n: t.List[int] = ()", ["list-argument"]),
        ("n: t.Optional[t.Dict[str, int]] = None", ["argument-kind"]),
        ("n: tuple[int, ...] = (1, 2)", []),
        ("n: t.Callable[[int], int] = min", []),
        ("n: B = None", ["argument-kind"]),
        ("n: C = None", ["argument-kind"]),
        ("n: D = None", []),
    ],
)
def test_what_a_kernel_may_be_given(parameter, broken, tmp_path):
    classes = (
        "import typing as t\n"
        "class A(object):\n    pass\nclass B(nl.NKIObject, A):\n    pass\n"
        "class C(t.NamedTuple):\n    n: int\nclass D(unknown()):\n    pass\n"
    )
    source = f"{classes}@nki.jit\ndef kernel(x, {parameter}):\n    return x\n"
    assert rules(tmp_path, IMPORTS + source) == broken


def test_module_level_aliases_and_the_constants_module(tmp_path):
    source = "from nki.isa.constants import engine\nload = nl.load\nrange_ = nl.affine_range\n"
    use = "nisa.memset(dst=x, value=0.0, engine=engine.{0}), load(x) + 1, range_(2)"
    assert rules(tmp_path, IMPORTS + source + KERNEL.format(use.format("vector"))) == [
        "deprecated-range",
        "tile-arithmetic",
    ]
    wrong = KERNEL.format(use.format("simd"))
    assert "unknown-name" in rules(tmp_path, IMPORTS + source + wrong)


def test_state_of_a_function_around_the_kernel_is_outside(tmp_path):
    source = (
        "def make():\n    n = 1\n    @nki.jit\n    def kernel(x):\n"
        "        {0}\n        n = 2\n        return x\n    return kernel\n"
    )
    assert rules(tmp_path, IMPORTS + source.format("nonlocal n")) == ["impure-write"]
    assert rules(tmp_path, IMPORTS + source.format("pass")) == []


def test_bodies_given_by_keyword_and_grids_of_the_old_dialect(tmp_path):
    loop = "nl.fori_loop(lower=0, upper=4, body_fun=lambda i: i + 1)"
    assert rules(tmp_path, IMPORTS + KERNEL.format(loop)) == ["register-arithmetic"]
    host = KERNEL.format("pass") + "\nkernel[nl.ds(0, 2)](1)\n"
    assert rules(tmp_path, IMPORTS + host) == ["launch-grid"]


def test_names_that_a_function_binds_hide_the_imports(tmp_path):
    source = "@nki.jit\ndef kernel(x, nl):\n    nl.arange(4)\n    return x\n"
    assert rules(tmp_path, IMPORTS + source) == []


def test_arguments_of_other_classes(tmp_path):
    plain = "import dataclasses\n@dataclasses.dataclass\nclass A:\n    n: int = 1\n"
    kernel = "@nki.jit\ndef kernel(x, a: A | None = None):\n    return x\n"
    assert rules(tmp_path, IMPORTS + plain + kernel) == ["argument-kind"]
    good = plain.replace("class A:", "class A(nl.NKIObject):")
    assert rules(tmp_path, IMPORTS + good + kernel) == []
    below = good + "class B(A):\n    pass\n"
    assert rules(tmp_path, IMPORTS + below + kernel.replace("a: A", "a: B")) == []
