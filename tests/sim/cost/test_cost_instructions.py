"""Costs of single instructions: the documented figures, and an entry for everything that runs."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from dslearn.errors import UsageError
from dslearn.sim.cost import load
from dslearn.sim.cost.dma import chunk_rate, transfer
from dslearn.sim.cost.work import TABLE, work
from tests.support.cost import copy, part, product, run, tile

ISA = Path(__file__).parents[3] / "dslearn" / "sim" / "isa"
RATES = load()


def cycles(one):
    """Busy cycles on the instruction's engine."""
    clocks = {"tensor": 2.4, "vector": 0.96, "scalar": 1.2, "gpsimd": 1.2}
    return round(work(one, RATES).busy * clocks[one.engine], 6)


def emitted():
    """Names of instructions that the simulator records, from its source."""
    found = set()
    for path in ISA.glob("*.py"):
        source = ast.parse(path.read_text(encoding="utf-8"))
        constants = {
            node.targets[0].id: node.value.value
            for node in ast.walk(source)
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Constant)
        }
        for node in ast.walk(source):
            if not (isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".emit")):
                continue
            first = node.args[0]
            if isinstance(first, ast.Constant):
                found.add(first.value)
            elif isinstance(first, ast.Name) and first.id in constants:
                found.add(constants[first.id])
    return found


def test_everything_that_runs_has_a_cost():
    assert len(emitted()) > 20
    assert emitted() <= set(TABLE), f"no cost for {sorted(emitted() - set(TABLE))}"


def test_an_unknown_instruction_is_named():
    with pytest.raises(UsageError, match="does not know instruction levitate on vector"):
        work(run("levitate", "vector", tile(128, 8)), RATES)
    with pytest.raises(UsageError, match="engine 'warp'"):
        work(run("iota", "warp", tile(128, 8)), RATES)


def matmul(m=128, n=512, dtype="bfloat16", **changes):
    dst = tile(m, n, region="psum")
    return product(dst, tile(128, m, dtype=dtype), tile(128, n, dtype=dtype), **changes)


def test_a_bf16_tile_takes_512_cycles_or_213_ns():
    assert work(matmul(), RATES).busy == pytest.approx(213.3, abs=0.1)
    assert cycles(matmul(dtype="float8_e4m3", perf_mode="double_row", k=256)) == 512
    assert cycles(matmul(dtype="float32")) == 4 * 512
    assert cycles(matmul(dtype="float32", is_transpose=True)) == 2 * 512
    assert cycles(matmul(dtype="float32", onezero=True)) == 2 * 512


@pytest.mark.parametrize(("m", "n", "expected"), [(128, 1, 64), (16, 1, 16), (1, 512, 512)])
def test_products_of_few_columns(m, n, expected):
    assert cycles(matmul(m, n)) == expected


def test_a_quarter_of_the_array_leaves_the_rest_to_others():
    whole, quarter = work(matmul(), RATES), work(matmul(tile_size=(32, 128)), RATES)
    assert quarter.busy == whole.busy / 4
    assert quarter.busy + quarter.latency == pytest.approx(whole.busy + whole.latency)


def test_transposes():
    data, dst = tile(128, 128, dtype="bfloat16"), tile(128, 128, dtype="bfloat16", region="psum")
    assert cycles(run("nc_transpose", "tensor", dst, data, p=128, f=128)) == 128
    assert cycles(run("nc_transpose", "tensor", dst, data, p=16, f=128)) == 64
    wide = run(
        "nc_transpose", "tensor", tile(128, 128, region="psum"), tile(128, 128), p=128, f=128
    )
    assert cycles(wide) == 256
    assert cycles(run("nc_transpose", "vector", tile(32, 32), tile(32, 32), p=32, f=32)) == 64


def pair(n, dtype="float32", region="sbuf"):
    return tile(128, n, dtype=dtype, region=region), tile(128, n, dtype=dtype)


def test_sixteen_bit_copies_are_two_and_four_times_as_fast():
    fp32, bf16 = pair(1024), pair(1024, "bfloat16")
    assert cycles(copy(*fp32)) == 1024
    assert cycles(copy(*bf16)) == 256
    assert cycles(copy(tile(128, 1024, dtype="bfloat16"), fp32[1])) == 1024, "one side is fp32"
    assert cycles(copy(*bf16, "scalar")) == 1024, "only the Vector engine does that"
    assert cycles(copy(*pair(1024, "bfloat16", "psum"))) == 512
    strided = part(tile(128, 2048, dtype="bfloat16"), slice(None), slice(0, None, 2))
    assert cycles(copy(bf16[0], strided)) == 512
    assert cycles(copy(*pair(1024, "uint8"))) == 1024
    assert cycles(copy(*pair(8))) == 64, "the fewest an instruction takes"
    assert cycles(run("tensor_scalar", "vector", *bf16, op=("multiply",))) == 256


def test_two_tiles_cost_two_cycles_per_element():
    a, b = pair(512)
    assert cycles(run("tensor_tensor", "vector", a, a, b, op="add")) == 1024
    half = [tile(128, 512, dtype="bfloat16") for _ in range(3)]
    assert cycles(run("tensor_tensor", "vector", *half, op="multiply")) == 512
    assert cycles(run("tensor_tensor", "vector", *half, op="maximum")) == 1024
    psum = tile(128, 512, region="psum")
    assert cycles(run("tensor_tensor", "vector", a, psum, b, op="add")) == 512
    assert cycles(run("scalar_tensor_tensor", "vector", a, a, b, op=("multiply", "add"))) == 1024
    broadcast = half[0]._replace(strides=(512, 0))
    assert cycles(run("tensor_tensor", "vector", *half[:2], broadcast, op="multiply")) == 1024


def test_other_documented_formulas():
    a, b = pair(512)
    column = tile(128, 1)
    assert cycles(run("reciprocal", "vector", a, b)) == 8 * 512
    assert cycles(run("activation", "scalar", a, b, op="exp")) == 512
    assert cycles(run("activation", "scalar", (a, column), b, op="exp")) == 512 + 64
    assert cycles(run("tensor_scalar_reduce", "vector", (a, column), b, op="add")) == 512 + 64
    assert cycles(run("iota", "gpsimd", a)) == 150 + 512
    assert cycles(run("tensor_reduce", "vector", column, b, op="add")) == 512
    eights = tile(128, 8), tile(128, 512)
    assert cycles(run("max8", "vector", *eights)) == 512
    assert cycles(run("topk", "gpsimd", (column, column), b, n=100)) == 150 + 4 * 100 + 1
    assert cycles(run("memset", "vector", tile(128, 512, dtype="bfloat16"))) == 256


def test_wide_strides_halve_the_speed():
    every_other = part(tile(128, 1024), slice(None), slice(0, None, 2))
    every_fourth = part(tile(128, 2048), slice(None), slice(0, None, 4))
    assert cycles(copy(tile(128, 512), every_other)) == 512, "8 bytes apart"
    assert cycles(copy(tile(128, 512), every_fourth)) == 1024, "16 bytes apart"


def test_a_dma_engine_moves_32_kib_in_the_measured_time():
    moved = transfer(copy(tile(8, 1024), tile(8, 1024, region="private_hbm")), RATES)
    assert (moved.first, moved.last) == (0, 1)
    assert moved.ns == pytest.approx(1416, rel=0.01), "32 KiB, published by somebody with a trn2"


@pytest.mark.parametrize(("partitions", "engines"), [(1, 1), (8, 1), (9, 2), (64, 8), (128, 16)])
def test_a_tile_uses_an_engine_per_eight_partitions(partitions, engines):
    moved = transfer(copy(tile(partitions, 4), tile(partitions, 4, region="private_hbm")), RATES)
    assert moved.last - moved.first == engines and moved.read == partitions * 16


def test_runs_decide_the_rate_of_a_dma():
    assert chunk_rate(4096, RATES) == 23 and 0.85 < chunk_rate(2048, RATES) / 23 < 0.95
    assert chunk_rate(256, RATES) / 27.2 == pytest.approx(0.3, abs=0.01)
    source = tile(128, 4096, region="private_hbm", dtype="uint8")
    whole, columns = (
        copy(tile(128, 4096, dtype="uint8"), source),
        part(source, slice(0, 128), slice(0, 64)),
    )
    few = copy(tile(128, 64, dtype="uint8"), columns)
    assert transfer(whole, RATES).ns * 16 * 23 == pytest.approx(128 * 4096)
    assert transfer(few, RATES).rows == 128
    transposing = run("dma_transpose", "dma", *whole.outputs, *whole.inputs, dge="unknown")
    assert transfer(transposing, RATES).ns == pytest.approx(transfer(whole, RATES).ns / 0.9)


def test_who_makes_descriptors_pays():
    hbm, sbuf = tile(128, 64, region="private_hbm"), tile(128, 64)
    plain = work(copy(sbuf, hbm), RATES)
    made = work(run("dma_copy", "dma", sbuf, hbm, dge="hwdge", issuer="sync"), RATES)
    hidden = work(run("dma_copy", "dma", sbuf, hbm, dge="hwdge", issuer="scalar"), RATES)
    soft = work(run("dma_copy", "dma", sbuf, hbm, dge="swdge", issuer="unknown"), RATES)
    assert plain.queue == "dma load" and plain.latency == hidden.latency == 2000
    assert made.latency == 2600 and soft.queue == "gpsimd"
    assert work(copy(hbm, sbuf), RATES).queue == "dma store"
    assert work(copy(hbm, tile(128, 64, region="private_hbm")), RATES).queue == "dma copy"


def test_a_sum_by_dma_reads_its_sources_and_not_its_offsets():
    target, addend, index = (
        tile(128, 64, region="private_hbm"),
        tile(128, 64),
        tile(128, 1, dtype="int32"),
    )
    rows = target._replace(indirect=True)
    moved = transfer(
        run("dma_compute", "dma", rows, rows, addend, index, index, dge="swdge"), RATES
    )
    assert moved.read == moved.written == target.nbytes and moved.nbytes == 2 * target.nbytes
