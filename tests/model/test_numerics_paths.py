"""The numeric switches inside the model: where bf16 rounds, what fp8_max bounds, what stays fp32.

A whole bf16 model is chaotic at these sizes (one last bit moves a logit by units), so it is judged
piece by piece: what leaves a module is a bf16 number, and it is the right one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dslearn.errors import UsageError
from dslearn.model.attention import attend
from dslearn.model.indexer import index_scores
from dslearn.model.linear import Linear, Norm
from dslearn.model.moe import clamped_swiglu
from dslearn.numerics import Numerics
from tests.support.models import EXACT, build, prompt, small_config, tensors_of, weights

RAW = small_config()
BF16 = Numerics(arithmetic="bf16", activations=False, caches=False)
IDS = prompt(RAW, 14)


def draw(seed: int, *shape: int, width: float = 1.0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0, width, shape)).float()


def bf16(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16).float()


def is_bf16(x: Tensor) -> bool:
    return torch.equal(bf16(x), x)


def nearly(a: Tensor, b: Tensor, share: float = 0.98) -> bool:
    """Equal but for a few values that another order of summation rounded to the neighbour."""
    assert torch.allclose(a, b, rtol=2**-7, atol=1e-3 * float(b.abs().max()))
    return bool((a == b).float().mean() > share)


def test_linears_norms_blocks_and_streams_hand_on_bf16():
    model, seen = build(RAW, BF16), []
    for name, module in model.named_modules():
        if isinstance(module, Linear | Norm) and "wo_a" not in name:
            module.register_forward_hook(
                lambda _, args, out, n=name: seen.append((n, args[0], out))
            )
    trace: dict = {}
    logits = model.forward(IDS, trace=trace)
    assert len(seen) > 40 and logits.isfinite().all()
    wrong = {name for name, x, y in seen if not (is_bf16(x) and is_bf16(y))}
    assert not wrong, wrong
    for layer in trace["layers"]:
        assert is_bf16(layer["streams"]) and layer["streams"].isfinite().all()
    assert not is_bf16(logits), "the head is fp32"


def test_mixing_and_routing_stay_in_fp32():
    model = build(RAW, BF16)
    h = bf16(draw(1, 1, 9, 3, 32))
    for part in model.layers[0].hc_attn(h):
        assert not is_bf16(part)
    assert not is_bf16(model.layers[0].ffn.gate(h[0, :, 0], None)[1])
    same = build(RAW).layers[0].hc_attn(h)
    for a, b in zip(model.layers[0].hc_attn(h), same, strict=True):
        assert torch.equal(a, b)


def test_the_first_layer_is_close_to_fp32_and_the_model_finite():
    streams = []
    for numerics in (EXACT, BF16):
        trace: dict = {}
        assert build(RAW, numerics).forward(IDS, trace=trace).isfinite().all()
        streams.append(trace["layers"][1]["streams"])
    error = (streams[0] - streams[1]).norm() / streams[0].norm()
    assert 1e-5 < error < 0.03


def test_index_scores_round_the_dots_the_terms_and_the_sum_in_this_order():
    q, keys, w = bf16(draw(1, 1, 6, 16, 32)), bf16(draw(2, 1, 9, 32)), bf16(draw(3, 1, 6, 16))
    dots = bf16(torch.einsum("bthd,bnd->bthn", q, keys))
    terms = bf16(dots.relu() * w.unsqueeze(-1))
    want = bf16(terms.sum(2))
    for invariant in (False, True):
        arith = build(RAW, replace(BF16, row_invariant=invariant)).arith
        got = index_scores(q, keys, w, arith)
        assert is_bf16(got) and nearly(got, want, 0.9)
    exact = index_scores(q, keys, w, build(RAW).arith)
    assert (exact - got).abs().max() > 1e-4 and not is_bf16(exact)


def test_attention_rounds_the_probabilities_of_the_sum_only():
    q, keys, sink = bf16(draw(1, 1, 3, 2, 32)), bf16(draw(2, 1, 3, 11, 32)), draw(3, 2)
    hidden = torch.arange(11).expand(1, 3, 11) > 7
    scores = torch.einsum("bthd,btnd->bthn", q, keys) * 32**-0.5
    scores = scores.masked_fill(hidden.unsqueeze(2), -torch.inf)
    p = torch.exp(scores - scores.amax(-1, keepdim=True))
    total = p.sum(-1) + torch.exp(sink - scores.amax(-1))
    want = bf16(torch.einsum("bthn,btnd->bthd", bf16(p), keys) / total.unsqueeze(-1))
    got = attend(q, keys, hidden, sink, build(RAW, BF16).arith)
    assert is_bf16(got) and nearly(got, want)
    other = bf16(torch.einsum("bthn,btnd->bthd", bf16(p), keys) / (
        bf16(p).sum(-1) + torch.exp(sink - scores.amax(-1))
    ).unsqueeze(-1))  # fmt: skip
    assert (got == other).float().mean() < 0.98, "rounding below the line would show"


def test_a_query_without_keys_gives_zero_and_nan_behind_the_mask_is_not_seen():
    q, keys = draw(1, 1, 2, 2, 32), draw(2, 1, 2, 5, 32)
    hidden = torch.tensor([[[True] * 5, [False, True, False, True, True]]])
    for numerics in (EXACT, BF16, replace(EXACT, row_invariant=True)):
        arith = build(RAW, numerics).arith
        clean = attend(q, keys, hidden, torch.zeros(2), arith)
        poisoned = keys.masked_fill(hidden.unsqueeze(-1), torch.nan)
        assert torch.equal(attend(q, poisoned, hidden, torch.zeros(2), arith), clean)
        assert not clean[0, 0].any() and clean[0, 1].abs().max() > 0.1


def test_experts_round_before_the_clamp_before_w2_and_after_it():
    model = build(RAW, BF16)
    ffn, x = model.layers[0].ffn, bf16(draw(4, 9, 32))

    def expert(part, rows: Tensor, weight: Tensor | None) -> Tensor:
        gate, up = (bf16(F.linear(rows, w.weight)) for w in (part.w1, part.w3))
        inner = clamped_swiglu(gate, up, RAW["swiglu_limit"])
        inner = inner if weight is None else inner * weight
        return bf16(F.linear(bf16(inner), part.w2.weight))

    y, ids, shares = ffn(x)
    want = torch.zeros_like(x)
    for e in range(RAW["n_routed_experts"]):  # ascending, summed in fp32
        rows, slot = (ids == e).nonzero(as_tuple=True)
        want[rows] += expert(ffn.experts[e], x[rows], shares[rows, slot, None])
    want = bf16(want + expert(ffn.shared_experts, x, None))
    assert is_bf16(y) and nearly(y, want, 0.9)


def test_index_weights_are_rounded_before_and_after_their_scale():
    model = build(RAW, BF16)
    indexer, x = model.layers[1].attn.indexer, bf16(draw(5, 1, 4, 32))
    scale = 32**-0.5 * 16**-0.5
    want = bf16(bf16(F.linear(x, indexer.weights_proj.weight)) * scale)
    model.tables["compress"].reserve(4)
    cos, sin = model.tables["compress"].at(torch.arange(4)[None])
    got = indexer.queries(bf16(draw(6, 1, 4, 32)), x, cos, sin)[1]
    assert nearly(got, want)


def test_each_block_of_32_inputs_has_its_own_scale():
    """Loud and faint blocks side by side: one scale for both would flush the faint one to zero."""
    linear = build(small_config(hidden_size=64), Numerics(activations=True)).layers[0].attn.wq_a
    x = draw(7, 5, 64)
    x[:, :32] *= 1e6
    error = (linear.prepare(x) - x).abs() / x.abs().unflatten(-1, (2, 32)).amax(
        -1
    ).repeat_interleave(32, -1)
    assert 0.005 < error[:, 32:].max() < 1 / 16 and error[:, :32].max() < 1 / 16


@pytest.mark.parametrize(("fp8_max", "faint"), [(448, 2.0**-9), (240, 2.0**-8), (224, 2.0**-8)])
def test_fp8_max_bounds_the_inputs(fp8_max, faint):
    """Under 300 the scale is 1 with 448 and 2 otherwise; .002 rounds to one step of 2^-9 scales."""
    x = torch.full((1, 32), 0.002)
    x[0, 0] = 300.0
    linear = build(RAW, Numerics(activations=True, fp8_max=fp8_max)).layers[0].ffn.experts[0].w1
    assert linear.prepare(x)[0, :2].tolist() == [288.0, faint]


@pytest.mark.parametrize("fp8_max", [448, 240, 224])
def test_no_code_or_scale_above_fp8_max_reaches_a_cache(fp8_max):
    """0x77 is 240 in both readings; a code above it is infinity or NaN to the device."""
    loud = {
        name: 5000.0 * torch.ones_like(value)
        for name, value in weights(RAW).items()
        if name.endswith(("compressor.norm.weight", "attn.kv_norm.weight"))
    }
    model = build(RAW, Numerics(activations=True, fp8_max=fp8_max), change=loud)
    state = model.new_state(1, 20)
    model.forward(IDS, state)
    highest = {448: 0x7E, 240: 0x77, 224: 0x76}[fp8_max]
    for path, data in tensors_of(state):
        if path.endswith("ring.data"):
            codes = data[..., :32]
        elif path.endswith("entries.data"):
            codes = data[..., 16:]  # two e4m3 scales behind 32 values
        else:
            continue
        top = int((codes & 0x7F).max())
        assert top <= highest, f"{path}: 0x{top:02x} with fp8_max={fp8_max}"
        assert top >= highest - 8, f"{path}: 0x{top:02x}, nothing here is near the bound"


def test_switches_that_do_not_exist_are_refused():
    for wrong in ({"arithmetic": "fp16"}, {"activations": 2}, {"fp8_max": 447}):
        with pytest.raises(UsageError, match="must be"):
            Numerics(**wrong)
