"""The backend decides who serves an operation: twin or kernel, and nobody guesses."""

from __future__ import annotations

import gc

import pytest
import torch

from dslearn import backend, ops
from dslearn.errors import BackendError, KernelError, UsageError
from dslearn.ops.registry import Op
from dslearn.ops.rmsnorm import reference, rmsnorm
from dslearn.ops.swiglu import reference as swiglu_reference
from dslearn.ops.swiglu import swiglu
from dslearn.sim import recording
from tests.support import op_kernels
from tests.support.kernels import bits, matrix
from tests.support.ops import add_into, add_into_a_copy, codes, same, times

EPS = 1e-6


def inputs(rows=5, columns=48, dtype=torch.float32):
    return matrix(1, rows, columns, dtype), matrix(2, 1, columns)[0] + 2


def test_cpu_is_the_twin_bit_for_bit():
    x, weight = inputs(dtype=torch.bfloat16)
    with backend.use("cpu"), recording() as launches, ops.collect() as taken:
        y = rmsnorm(x, weight, EPS)
    assert torch.equal(bits(y), bits(reference(x, weight, EPS))) and not launches
    assert taken.counts() == {"rmsnorm": {"twin": 1}}


def test_sim_is_the_kernel_on_its_grid():
    x, weight = inputs(dtype=torch.bfloat16)
    with backend.use("sim"), recording() as launches, ops.collect() as taken:
        y = rmsnorm(x, weight, EPS)
    (launch,) = launches
    assert launch.kernel == "rmsnorm" and len(launch.cores) == 2
    assert taken.counts() == {"rmsnorm": {"kernel": 1}}
    torch.testing.assert_close(y, reference(x, weight, EPS), rtol=2.0**-7, atol=0)


@pytest.mark.parametrize("name", ["cpu", "sim"])
@pytest.mark.parametrize("weighted", [False, True])
def test_optional_tensors_and_keywords(name, weighted):
    gate, up = matrix(3, 4, 9), matrix(4, 4, 9)
    weight = matrix(5, 4, 1) if weighted else None
    with backend.use(name):
        y = swiglu(gate=gate, up=up, weight=weight, limit=1.5)
    torch.testing.assert_close(y, swiglu_reference(gate, up, 1.5, weight), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("name", ["cpu", "sim"])
def test_results_are_contiguous_whatever_the_arguments_are(name):
    gate, up = matrix(3, 9, 4).T, matrix(4, 9, 4).T
    with backend.use(name):
        y = swiglu(gate, up, 1.5)
    assert y.is_contiguous() and not swiglu_reference(gate, up, 1.5).is_contiguous()
    torch.testing.assert_close(y, swiglu_reference(gate, up, 1.5), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("name", ["cpu", "sim"])
def test_padding_two_results_and_a_default(name):
    x = matrix(6, 5, 7, torch.bfloat16)
    with backend.use(name):
        plus, minus = times(x)
        half, _ = times(x, 0.5)
    assert torch.equal(plus, x * 2) and torch.equal(minus, x * -2) and torch.equal(half, x / 2)
    assert plus.is_contiguous() and plus.abs().max() > 0


@pytest.mark.parametrize("name", ["cpu", "sim"])
@pytest.mark.parametrize("strided", [False, True])
def test_what_is_written_in_place_is_the_callers(name, strided):
    base = torch.zeros(4, 6)
    cache, rows = (base[:, ::2] if strided else base), matrix(7, 4, 3 if strided else 6)
    with backend.use(name):
        assert add_into(cache, rows) is None
        add_into(cache, rows)
    assert torch.equal(cache, rows + rows)
    assert not strided or not base[:, 1::2].any()


def test_a_copy_of_what_is_written_is_refused():
    cache, rows = torch.zeros(2, 3), torch.ones(2, 3)
    with backend.use("sim"), pytest.raises(KernelError, match=r"writes, \[2, 3\], reaches.*copy"):
        add_into_a_copy(cache, rows)
    assert not cache.any()


@pytest.mark.parametrize("name", ["cpu", "sim"])
def test_every_fp8_code_passes_both_ways(name):
    x = torch.arange(256, dtype=torch.uint8).reshape(4, 64).view(torch.float8_e4m3fn)
    with backend.use(name):
        y = codes(x)
    assert y.dtype == x.dtype and torch.equal(y.view(torch.uint8), x.view(torch.uint8))


def test_a_result_is_not_an_argument():
    x = matrix(8, 3, 4)
    with backend.use("sim"):
        y = same(x)
    assert torch.equal(x, y) and x.data_ptr() != y.data_ptr()


def test_results_outlive_the_launch():
    x, weight = inputs(40, 64)
    with backend.use("sim"):
        kept = [rmsnorm(x * n, weight, EPS) for n in range(1, 4)]
        before = [y.clone() for y in kept]
        for n in range(20):
            rmsnorm(x + n, weight, EPS)
            gc.collect()
    assert all(torch.equal(a, b) for a, b in zip(kept, before, strict=True)) and before[0].any()
    assert len({y.data_ptr() for y in kept}) == 3


@pytest.mark.parametrize("name", ["cpu", "sim"])
def test_no_rows_in_no_rows_out(name):
    x, weight = inputs(0)
    with backend.use(name), recording() as launches:
        y = rmsnorm(x, weight, EPS)
    assert y.shape == (0, 48) and y.dtype == x.dtype and not launches


REFUSED = [
    (torch.zeros(2, 4, dtype=torch.float16), torch.ones(4), r"x is fp16 \[2, 4\]"),
    (torch.zeros(2, 4, dtype=torch.float64), torch.ones(4), r"x is float64 \[2, 4\]"),
    (torch.zeros(1, 2, 4), torch.ones(4), r"x is fp32 \[1, 2, 4\]"),
    (torch.zeros(2, 4), torch.ones(3), r"weight is fp32 \[3\] where R = 2, K = 4"),
]


@pytest.mark.parametrize(("x", "weight", "words"), REFUSED)
def test_what_the_kernel_does_not_take_is_refused_and_says_what_it_takes(x, weight, words):
    with backend.use("sim"), ops.collect() as taken:
        with pytest.raises(KernelError, match=words) as caught:
            rmsnorm(x, weight, EPS)
        rmsnorm(torch.zeros(2, 4), torch.ones(4), EPS)
    text = str(caught.value)
    assert "the kernel rmsnorm serves x bf16|fp32 [R, K], weight bf16|fp32 [K]" in text
    assert 'backend.use("cpu")' in text
    assert taken.counts() == {"rmsnorm": {"kernel": 1}}, "a refusal is no path"


def test_the_twin_serves_what_the_kernel_refuses():
    x = matrix(9, 2, 4, torch.float16)
    with backend.use("cpu"):
        assert rmsnorm(x, torch.ones(4), EPS).dtype == torch.float16


def test_neuron_without_the_vendors_package_is_an_error(monkeypatch):
    monkeypatch.setattr(backend, "neuron_device", lambda: (True, "answers"))
    with backend.use("neuron"), pytest.raises(BackendError, match="torch_neuronx was not there"):
        rmsnorm(*inputs(), EPS)


@pytest.mark.parametrize("name", ["cpu", "sim"])
def test_gradients_pass_through_the_twin(name):
    x, weight = inputs()
    weight.requires_grad_()
    with backend.use(name), ops.collect() as taken:
        y = rmsnorm(x, weight, EPS)
        with torch.no_grad():
            plain = rmsnorm(x, weight, EPS)
    y.sum().backward()
    expected = (x / (x.square().mean(1, keepdim=True) + EPS).sqrt()).sum(0)
    torch.testing.assert_close(weight.grad, expected, rtol=1e-5, atol=1e-6)
    assert not plain.requires_grad
    assert taken.counts() == {"rmsnorm": {"twin": 2} if name == "cpu" else {"twin": 1, "kernel": 1}}


def test_a_fake_that_promises_something_else_is_found():
    wrong = Op(
        "test_wrong_fake(Tensor x) -> Tensor",
        twin=lambda x: x.clone(),
        fake=lambda x: x.new_empty(x.shape, dtype=torch.bfloat16),
        kernel=op_kernels.same,
        takes={"x": "fp32 [R, K]"},
    )
    with backend.use("sim"), pytest.raises(KernelError, match="its fake promises.*bfloat16"):
        wrong(torch.ones(2, 3))


def declared(name="test_never", **changes):
    given = {
        "schema": f"{name}(Tensor x, float factor=2.0) -> (Tensor, Tensor)",
        "twin": times.twin,
        "fake": times.fake,
        "kernel": op_kernels.times,
        "takes": {"x": "fp32 [R, K]"},
    }
    return Op(**(given | changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"twin": lambda x, factor: x}, r"twin\(x, factor\) and the schema differ"),
        ({"fake": lambda y, factor=2.0: y}, r"fake\(y, factor=2.0\) and the schema differ"),
        ({"schema": "test_never(Tensor x, *, float factor=2.0) -> Tensor"}, r"arguments after \*"),
        ({"takes": {}}, r"takes= describes \[\], not \['x'\]"),
        ({"takes": {"x": "float32 [R]"}}, "'float32 \\[R\\]' is no form"),
        ({"kernel": times.twin}, "is no kernel: mark it with @nki.jit"),
        ({"grid": 3}, "grid=3: a kernel runs on 1 or 2 cores"),
        ({"grid": (1, 2)}, r"grid=\(1, 2\)"),
        ({"grid": True}, "grid=True"),
    ],
)
def test_a_declaration_that_does_not_fit_is_refused(changes, words):
    with pytest.raises(UsageError, match=words):
        declared(**changes)
    assert not hasattr(torch.ops.dslearn, "test_never"), "nothing was registered"


@pytest.mark.parametrize("cores", [1, 2])
def test_a_grid_is_a_number_or_a_tuple(cores):
    for tag, grid in (("number", cores), ("tuple", (cores,))):
        op = Op(
            f"test_grid_{tag}_{cores}(Tensor x, Tensor weight, float eps) -> Tensor",
            twin=reference,
            fake=rmsnorm.fake,
            kernel=rmsnorm.kernel,
            takes=rmsnorm.takes,
            grid=grid,
        )
        with backend.use("sim"), recording() as launches:
            op(*inputs(), EPS)
        assert [len(one.cores) for one in launches] == [cores]
