"""The operations of the quantised products: twin and kernel, compiled, refused forms."""

from __future__ import annotations

import pytest
import torch

from dslearn import backend, ops
from dslearn.formats.place import place_fp8
from dslearn.formats.place_fp4 import place_fp4, place_widened
from dslearn.ops.fp4_linear import fp4_linear
from dslearn.ops.fp4_widened import fp4_widened
from dslearn.ops.fp8_folded import fp8_folded
from dslearn.ops.fp8_linear import fp8_linear
from dslearn.sim.rules import KernelError
from tests.support import linear

OPS = {
    "fp8_folded": (fp8_folded, lambda: place_fp8(*linear.fp8(70, 96, 32, whole=True))),
    "fp8_linear": (fp8_linear, lambda: place_fp8(*linear.fp8(70, 96, 128, whole=True), 128)),
    "fp4_widened": (fp4_widened, lambda: place_widened(*linear.fp4(70, 96, 3))),
    "fp4_linear": (fp4_linear, lambda: place_fp4(*linear.fp4(70, 96, 3))),
}
each_op = pytest.mark.parametrize("name", OPS)


@each_op
@pytest.mark.parametrize("fp32_out", [False, True])
def test_twin_and_kernel_agree_on_exact_sums(name, fp32_out):
    op, placed = OPS[name][0], OPS[name][1]()
    x = linear.whole_rows(5, 96)
    twin = op(x, *placed, 70, fp32_out)
    with backend.use("sim"), ops.collect() as taken:
        y = op(x, *placed, 70, fp32_out)
    assert torch.equal(y, twin) and y.dtype == (torch.float32 if fp32_out else torch.bfloat16)
    assert f"{name}: kernel 1" in str(taken) and y.shape == (5, 70) and y.abs().max() > 0


@each_op
def test_compiled_in_one_graph(name):
    op, placed = OPS[name][0], OPS[name][1]()
    x = linear.whole_rows(3, 96)
    compiled = torch.compile(lambda x: op(x, *placed, 70) + 1, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert torch.equal(compiled(x), op(x, *placed, 70) + 1)


@each_op
def test_no_rows_and_other_forms(name):
    op, placed = OPS[name][0], OPS[name][1]()
    with backend.use("sim"):
        assert op(linear.whole_rows(3, 96)[:0], *placed, 70).shape == (0, 70)
        with pytest.raises(KernelError, match="x is fp32"):
            op(linear.whole_rows(3, 96).float(), *placed, 70)
        with pytest.raises(KernelError, match="power is"):
            op(linear.whole_rows(3, 96), placed[0], placed[1].int(), 70)
