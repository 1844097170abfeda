"""benchmarks/layer_budget.py: what a layer consists of, its sums, and the page that holds them."""

from __future__ import annotations

import re
from collections import Counter
from importlib import import_module
from pkgutil import iter_modules

import pytest

from benchmarks import layer_budget as budget
from benchmarks import layer_parts
from benchmarks.reference_kernels import PAGE
from dslearn import ops
from dslearn.ops.registry import Op
from dslearn.sim import cost


def page_rows(name: str) -> dict[str, list[str]]:
    """A table of docs/performance.md: first cell -> the others."""
    page = PAGE.read_text(encoding="utf-8")
    table = re.search(rf"<!-- {name} -->\n(.*)\n<!-- end of {name} -->", page, re.S)
    assert table, f"docs/performance.md has no table {name!r}"
    cells = [line.strip("| ").split(" | ") for line in table[1].splitlines()[2:]]
    return {row[0]: row[1:] for row in cells}


def test_the_released_model_has_these_layers():
    counts = {"local": 2, "full": 3, "reuse": 30, "full+candidate": 1, "reindex": 4}
    assert Counter(budget.RELEASED.roles) == counts
    assert sum(counts.values()) == 40


def test_a_step_runs_every_kernel_as_often_as_the_layers_say():
    step = budget.step()
    assert step["hc_mixes"] == step["hc_collapse"] == step["rmsnorm 5120"] == 80
    assert step["sparse_attn, 512 + 128"] == 38 and step["sparse_attn, window only"] == 2
    assert step["compress_pool"] == 3, "the three kv sources of ratio 2"
    assert step["kv_store, compressed"] == step["kv_store, index"] == 4
    assert step["fp8_folded, indexer wq_b 1280 x 4096"] == 8, "the index sources"
    assert step["index_topk, in candidates"] == 4 and step["engram_gate"] == 2
    assert step.keys() <= budget.PARTS.keys()
    others = {other for parts in budget.FUSED.values() for other in parts}
    assert budget.PARTS.keys() == step.keys() | others, "a part that nothing uses"


def test_shares_of_a_sum_are_weighted_by_time(monkeypatch):
    parts = {"a": budget.Cost(30.0, 0.5, 0.1), "b": budget.Cost(10.0, 0.1, 0.9)}
    monkeypatch.setattr(budget, "modelled", parts.__getitem__)
    found = budget.total(["a", "b"])
    assert found.us == 40 and found.hbm == pytest.approx(0.4) and found.pe == pytest.approx(0.3)
    assert parts["b"].limit == 0.9


@pytest.mark.parametrize(
    ("part", "floor", "most"),
    [
        ("hc_collapse", 4, 8),  # two DMA hops of 2 µs
        ("hc_expand", 4, 12),
        ("rmsnorm 512", 4, 8),
        ("rope, an entry", 4, 6),
        ("rope, 64 heads and the key", 5, 9),
        ("plain_linear, indexer wk bf16 512 x 128", 4, 7),
    ],
)
def test_small_kernels_wait_for_dma_and_the_page_says_how_long(part, floor, most):
    found = budget.modelled(part)
    assert floor < found.us < most and found.limit < 0.25
    us, _, _, limit, *_ = page_rows("step budget")[part]
    assert (us, limit) == (f"{found.us:.1f}", f"{found.limit:.0%}")


@pytest.mark.parametrize("outputs", [32, 384])
def test_a_product_is_not_faster_than_its_bytes(outputs):
    kernel, arguments = layer_parts.plain(5120, outputs)
    found = cost.profile(kernel[2], *arguments)
    assert found.us > 5120 * outputs * 2 / 725e3 and found.hbm_share < 1


def test_the_page_adds_up():
    parts, layers = page_rows("step budget"), page_rows("layer budget")
    us = {name: float(cells[0]) for name, cells in parts.items()}
    assert parts.keys() == budget.step().keys()
    for role in set(budget.RELEASED.roles):
        names = budget.layer(role)
        assert layers[role][1] == str(len(names))
        assert sum(us[name] for name in names) == pytest.approx(float(layers[role][2]), abs=2)
    whole = sum(n * us[name] for name, n in budget.step().items())
    assert whole == pytest.approx(float(layers["all layers"][2]), rel=1e-3)
    assert layers["all layers"][1] == str(budget.step().total())


def test_the_page_shows_that_fusing_pays():
    for one, _, others, saved in page_rows("fusions").values():
        assert float(saved) == pytest.approx(float(others) - float(one), abs=0.11)
        assert float(saved) > 4, "a launch less is a load and a store less"


SERVED = [
    op.launcher.name
    for module in iter_modules(ops.__path__)
    for op in vars(import_module(f"{ops.__name__}.{module.name}")).values()
    if isinstance(op, Op)
]


@pytest.mark.parametrize("kernel", sorted(set(SERVED)))
def test_every_kernel_has_a_modelled_time_and_its_share_of_the_limit_on_the_page(kernel):
    rows = re.findall(rf"^\| {kernel}\b.*", PAGE.read_text(encoding="utf-8"), re.M)
    assert any(re.search(r" \d+\.\d ", row) and "%" in row for row in rows), rows
