"""Operations of the expert and projection kernels: schema, fake results, and whole graphs."""

from __future__ import annotations

import pytest
import torch

from dslearn import backend, ops
from dslearn.formats import inputs_first
from dslearn.formats.place_fp4 import place_fp4
from dslearn.ops.engram_kv import engram_kv
from dslearn.ops.experts import experts
from dslearn.ops.fp4_gated import fp4_active, fp4_gated
from dslearn.ops.grouped import grouped
from dslearn.ops.shared_expert import shared_expert
from dslearn.sim.rules import KernelError
from tests.support.weights import fp4, fp8, whole_rows


def fp8_parts(outputs, inputs, parts=2):
    codes, scale = inputs_first.fp8(*fp8(1, outputs, inputs))
    return inputs_first.by_part(codes, parts), inputs_first.scale_by_part(scale, parts)


def cases():
    """Each operation with small arguments."""
    x = whole_rows(1, 3, 64)
    order, count = torch.tensor([[1], [0]], dtype=torch.int32), torch.ones(1, 1, dtype=torch.int32)
    codes, scale = fp8(2, 3, 64)
    yield engram_kv, (codes, scale.expand(3, -1).contiguous(), *fp8_parts(96, 64))
    weight, grid = fp8_parts(96, 64, 1)
    yield grouped, (whole_rows(2, 3, 2, 64), weight.expand(2, -1, -1, -1, -1).contiguous(),
                    grid.expand(2, -1, -1, -1, -1).contiguous())  # fmt: skip
    three = fp8(3, 32, 64), fp8(4, 32, 64), fp8(5, 64, 32)
    yield shared_expert, (x, *inputs_first.shared_expert(*three), 2.0)
    each = [
        inputs_first.routed_expert(fp4(e, 32, 64), fp4(e + 2, 32, 64), fp4(e + 4, 64, 32))
        for e in range(2)
    ]
    stacked = [torch.stack(part) for part in zip(*each, strict=True)]
    yield experts, (x, *stacked, order, count, torch.ones(2, 3), 2.0)
    packed = [torch.stack(p) for p in zip(*(place_fp4(*fp4(e, 70, 64)) for e in (6, 7)),
                                          strict=True)]  # fmt: skip
    yield fp4_gated, (x, *packed, torch.tensor([[0, 1]], dtype=torch.int32), 70)
    yield fp4_active, (x, *packed, order, count, 70)


CASES = list(cases())
each_op = pytest.mark.parametrize(("op", "arguments"), CASES, ids=lambda v: getattr(v, "name", ""))


@each_op
def test_schema_and_fake_agree_with_the_result(op, arguments):
    done = torch.library.opcheck(
        op.overload, arguments, test_utils=("test_schema", "test_faketensor")
    )
    assert set(done.values()) == {"SUCCESS"}


@each_op
@pytest.mark.parametrize("name", ["cpu", "sim"])
def test_it_works_in_a_whole_graph(op, arguments, name):
    with backend.use(name), ops.collect() as taken:
        eager = op(*arguments)
        compiled = torch.compile(op, fullgraph=True, backend="aot_eager")(*arguments)
    assert torch.equal(eager, compiled) and eager.any()
    assert op.name in str(taken) and ("kernel" if name == "sim" else "twin") in str(taken)


@each_op
def test_rows_of_another_dtype_are_refused_on_the_kernel_path(op, arguments):
    wrong = (arguments[0].to(torch.float32), *arguments[1:])
    with backend.use("sim"), pytest.raises(KernelError, match="fp32"):
        op(*wrong)
    with backend.use("sim"):
        assert op(*arguments).any()
