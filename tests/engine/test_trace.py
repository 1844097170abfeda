"""The trace of one step: what is counted, what is modelled, and how it is printed."""

from __future__ import annotations

import inspect
import sys

import pytest

import dslearn
from dslearn import backend
from dslearn.cli import main
from dslearn.engine import trace
from dslearn.engine.trace import Line, show, step

PROMPT = "import sys\n"


@pytest.fixture(scope="module")
def traced(lm):
    """The lines of one step on sim, by operation."""
    with backend.use("sim"):
        return {line.op: line for line in step(lm, lm.encode(PROMPT))}


def test_kernels_have_calls_and_a_modelled_time(lm, traced):
    kernels = {op: line for op, line in traced.items() if line.path == "kernel"}
    assert {"fp8_folded", "widened_active", "rmsnorm", "swiglu"} <= set(kernels)
    layers = lm.config.num_hidden_layers
    assert traced["widened_active"].calls == 3 * layers, "w1, w3 and w2 of all experts in use"
    assert traced["hc_expand"].calls == 2 * layers == traced["hc_collapse"].calls - 1
    # Nothing is faster than one DMA in and one out.
    assert all(line.us and line.us > 2 * line.calls for line in kernels.values())


def test_what_is_no_kernel_yet_is_listed_as_torch(lm, traced):
    layers = lm.config.num_hidden_layers
    torch = {op: line.calls for op, line in traced.items() if line.path == "torch"}
    assert torch["router"] == layers
    kernels = {op: line.calls for op, line in traced.items() if line.path == "kernel"}
    assert kernels["sparse_attn"] == layers and {"rope", "kv_store", "compress_pool"} <= set(
        kernels
    )
    assert not set(kernels) & set(torch)
    assert all(line.us is None for line in traced.values() if line.path == "torch")


def products(cfg):
    """Weights that rows meet in a step of few entries: layers, entries, Engram, head; not wo_a."""
    layers, pairs = cfg.num_hidden_layers, [cfg.ratios[i] == 2 for i in cfg.kv_source_layer_ids]
    experts = cfg.num_experts_per_tok + 1
    each = 3 + 1 + 2 * experts  # wq_a with wkv, wq_b, wo_b; router; w1 with w3, w2
    entries = sum(2 + pair for pair in pairs)  # wkv and the indexer's wk, wgate of pairs
    return each * layers + entries + len(cfg.engram_layer_ids) + 1


def test_no_product_is_left_to_torch(lm, traced):
    """Kernels do not join wq_a with wkv, nor w1 with w3; a list serves all routed experts."""
    cfg = lm.config
    layers, experts = cfg.num_hidden_layers, cfg.num_experts_per_tok + 1
    assert not {"linear", "grouped"} & set(traced)
    calls = sum(traced[op].calls for op in ("fp8_folded", "plain_linear", "widened_active"))
    apart = products(cfg) + layers * (1 + experts) - layers * 3 * (experts - 2)
    assert calls == apart + layers * cfg.o_groups, "and wo_a by groups"


def test_inputs_of_products_of_codes_are_rounded_by_torch(lm, traced):
    """Once where products share an input: wq_a and wkv; all first products of experts."""
    cfg, fake = lm.config, traced["fake_fp8"]
    attention, experts = 3, 3  # of queries and keys, wq_b, wo_b; of w1 and w3, w2 twice
    each = attention + experts
    assert fake.calls == each * cfg.num_hidden_layers + len(cfg.engram_layer_ids)
    assert fake.path == "torch" and fake.us is None


def test_on_cpu_a_step_is_numpy_and_has_no_modelled_time(lm):
    lines = step(lm, lm.encode(PROMPT))
    paths = {(line.op, line.path): line.calls for line in lines}
    assert paths["linear", "numpy"] == products(lm.config) and ("linear", "torch") not in paths
    assert paths["sparse_attn", "numpy"] == lm.config.num_hidden_layers
    assert not any(line.us or line.path == "kernel" for line in lines)


def test_the_hook_that_counts_is_taken_away(lm, monkeypatch):
    def mine(*_: object) -> None:
        pass

    monkeypatch.setattr(lm, "forward", lambda *_: 1 / 0)
    sys.setprofile(mine)
    try:
        with pytest.raises(ZeroDivisionError, match="division"):
            step(lm, [0])
        assert sys.getprofile() is mine
    finally:
        sys.setprofile(None)


def test_every_function_that_is_counted_is_another():
    codes = [function.__code__ for functions in trace.OWN.values() for function in functions]
    assert len(set(codes)) == len(codes) > 20
    assert all(inspect.getsourcefile(code).endswith(".py") for code in codes)


def test_the_table():
    lines = [Line("fp8_folded", "kernel", 44, 1240.56), Line("rope", "torch", 3)]
    with backend.use("sim"):
        assert show(lines, 12).splitlines() == [
            "one step at position 12, backend sim",
            "op          path    calls    modelled",
            "fp8_folded  kernel     44  1,240.6 µs",
            "rope        torch       3           -",
            "kernels                44  1,240.6 µs",
            "modelled, not measured, without 120 µs for each launch",
            "torch, numpy: computed by the model itself, no kernel is called",
        ]
    assert "modelled," not in show(lines[1:], 1) and "backend cpu" in show(lines[1:], 1)


def test_the_command_prints_it_after_the_text(lm, monkeypatch, capsys):
    monkeypatch.setitem(vars(dslearn), "load", lambda model: lm)
    assert main(["generate", PROMPT, "--max-tokens", "1"]) == 0
    text = capsys.readouterr().out
    assert main(["generate", PROMPT, "--max-tokens", "1", "--trace"]) == 0
    out = capsys.readouterr().out
    position = len(lm.encode(PROMPT)) - 1
    assert out.startswith(f"{text}\none step at position {position}, backend cpu\nop ")
