"""The backend `dslearn`: stores without copies, bytes at the boundary, the vendor's where it is."""

from __future__ import annotations

import os
import shlex

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dslearn import backend
from dslearn.errors import GraphError
from dslearn.ops.kv_store import kv_store
from dslearn.regions import settings
from dslearn.regions.backend import dslearn_backend
from tests.support.ops import add_into

pytestmark = pytest.mark.usefixtures("own_graphs")
E4M3 = torch.float8_e4m3fn


def compiled(function, backend="dslearn"):
    torch._dynamo.reset()
    return torch.compile(function, backend=backend, fullgraph=True, dynamic=False)


class Written(TorchDispatchMode):
    """Counts the bytes of the tensors that operations make or overwrite, views excepted."""

    def __init__(self):
        super().__init__()
        self.bytes = 0
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.names.append(str(func))
        if not func.is_view:
            self.bytes += sum(x.nbytes for x in tree_leaves(out) if isinstance(x, torch.Tensor))
        return out


def store(pool, rows, x):
    pool.index_copy_(0, rows, x * 2)
    return x + 1


def add(pool, rows, x):
    add_into(pool[4:6], x)
    return x + 1


def keep(pool, rows, x):
    kv_store(x, rows, torch.ones(2, dtype=torch.bool), pool, "index")
    return x + 1


@pytest.mark.parametrize("name", ["cpu", "sim"])
@pytest.mark.parametrize("function", [store, add, keep])
def test_pools_are_never_copied(name, function):
    # 64 MB of pool and rows of 512 bytes: one copy anywhere would be seen.
    wide = function is keep
    dtype, width = (torch.uint8, 68) if wide else (torch.float32, 128)
    pool = torch.zeros((64 << 20) // (width * dtype.itemsize), width, dtype=dtype)
    x, rows, at = torch.randn(2, 128), torch.tensor([3, 9]), pool.data_ptr()
    expected = torch.zeros_like(pool[:16])
    counted = Written()

    def watched(module, inputs):
        run = dslearn_backend(module, inputs)

        def watch(*given):
            with counted:  # torch does not compile under such a mode, so it stands inside
                return run(*given)

        return watch

    with torch.inference_mode(), backend.use(name):
        function(expected, rows, x)
        y = compiled(function, watched)(pool, rows, x)
    assert torch.equal(pool[:16], expected) and expected.any() and torch.equal(y, x + 1)
    assert pool.data_ptr() == at and counted.names
    returned = pool.nbytes if function is store else 0  # index_copy_ gives the pool itself
    assert counted.bytes - returned < 1 << 20, counted.names


def test_the_counter_sees_a_copy():
    pool = torch.zeros(1 << 16, 128)
    with Written() as counted:
        store(pool.clone(), torch.tensor([3, 9]), torch.ones(2, 128))
    assert counted.bytes > 1.9 * pool.nbytes


def test_autograds_functional_form_would_copy_the_pool():
    # Why the backend does without it (dslearn/regions/tracing.py).
    from torch._dynamo.backends.common import aot_autograd

    pool = torch.zeros(1 << 14, 128)
    seen = []

    def keep_graph(module, inputs):
        seen.append(module.code)
        return module.forward

    torch._dynamo.reset()
    usual = aot_autograd(fw_compiler=keep_graph, keep_inference_input_mutations=True)
    with torch.no_grad():
        torch.compile(store, backend=usual, fullgraph=True)(
            pool, torch.tensor([3, 9]), torch.ones(2, 128)
        )
    assert "aten.index_copy.default" in seen[0] and "aten.copy_.default" in seen[0]


def test_codes_cross_the_boundary_as_bytes():
    def step(x, weight, pool):
        pool[1:2].copy_(x)
        return F.linear(x, weight.to(torch.float32)), pool[:2], x.to(E4M3)

    x = torch.randn(1, 8)
    weight, pool = torch.randn(4, 8).to(E4M3), torch.zeros(4, 8).to(E4M3)
    mine = pool.clone()
    with torch.no_grad():
        expected, found = step(x, weight, pool), compiled(step)(x, weight, mine)
    for a, b in zip((*expected, pool), (*found, mine), strict=True):
        assert a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))
    assert found[1].data_ptr() == mine.data_ptr(), "a view stays a view"


def test_all_findings_of_the_lint_are_told():
    def step(x):
        return x.double(), x.view(torch.int32) + 1

    with torch.no_grad(), pytest.raises(Exception, match="2 errors") as refused:
        compiled(step)(torch.ones(2))
    cause = refused.value.inner_exception
    assert isinstance(cause, GraphError)
    assert "float64" in str(cause) and "bitcast-input" in str(cause)


def test_a_nested_graph_is_refused_by_its_name():
    def step(x):
        return torch.cond(x.sum() > 0, lambda a: a.cumsum(0), lambda a: a - 1, (x,))

    with torch.no_grad(), pytest.raises(Exception, match="the graph holds cond, which") as refused:
        compiled(step)(torch.ones(3))
    assert isinstance(refused.value.inner_exception, GraphError)


def test_where_a_device_answers_its_backend_gets_bytes_and_one_argument_per_option(monkeypatch):
    seen = {}

    def neuron(module, inputs):
        seen.update(code=module.code, inputs=inputs, flags=os.environ["NEURON_CC_FLAGS"])
        return module.forward

    monkeypatch.setenv("NEURON_CC_FLAGS", "--x=--y --internal-hlo2tensorizer-options=--verify-hlo")
    settings.from_environment.cache_clear()
    monkeypatch.setattr(backend, "neuron_device", lambda: (True, "a fake answers"))
    monkeypatch.setattr("dslearn.regions.backend.lookup_backend", {"neuron": neuron}.__getitem__)
    x, weight = torch.randn(2, 8), torch.randn(4, 8).to(E4M3)

    def step(x, weight):
        return F.linear(x, weight.to(torch.float32))

    with torch.no_grad(), backend.use("neuron"):
        assert torch.equal(compiled(step)(x, weight), step(x, weight))
    assert "float8" not in seen["code"].replace("float8_e4m3fn_as_float32", "")
    assert {t.dtype for t in seen["inputs"]} == {torch.float32, torch.uint8}
    assert shlex.split(seen["flags"]) == [
        "--auto-cast=none",
        "--x=--y",
        "--internal-hlo2tensorizer-options=--verify-hlo",
    ]
    assert os.environ["NEURON_CC_FLAGS"].startswith("--x"), "put back"


def test_the_backend_has_a_name():
    assert "dslearn" in torch._dynamo.list_backends()
