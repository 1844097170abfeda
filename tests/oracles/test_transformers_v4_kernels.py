"""Kernels beside the blocks of transformers' `deepseek_v4` that V4.1 kept.

`test_transformers_v4` compares the model in torch; here simulated kernels compute, and nothing of
the model. What they read from cache records, the other side gets as numbers.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from dslearn.formats.records import Record
from dslearn.kernels.hc_collapse import hc_collapse
from dslearn.kernels.hc_expand import hc_expand
from dslearn.kernels.index_score import index_score
from dslearn.kernels.rmsnorm import rmsnorm
from dslearn.kernels.rope import rope
from dslearn.kernels.sparse_attn import sparse_attn
from dslearn.kernels.swiglu import swiglu
from tests.support.attention import case
from tests.support.kernels import matrix
from tests.support.streams import mixed, numbers, parameters, streams

pytest.importorskip("transformers")
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as v4
from transformers.models.deepseek_v4.configuration_deepseek_v4 import DeepseekV4Config

WIDTH, STREAMS, LIMIT, EPS = 96, 4, 1.5, 1e-6
CONFIG = DeepseekV4Config(
    vocab_size=64,
    hidden_size=WIDTH,
    num_hidden_layers=1,
    layer_types=["sliding_attention"],
    mlp_layer_types=["moe"],
    moe_intermediate_size=32,
    n_routed_experts=4,
    num_experts_per_tok=2,
    num_attention_heads=4,
    head_dim=64,
    qk_rope_head_dim=16,
    partial_rotary_factor=0.25,
    swiglu_limit=LIMIT,
    rms_norm_eps=EPS,
    hc_mult=STREAMS,
    hc_sinkhorn_iters=20,
    hc_eps=1e-6,
    index_n_heads=16,
    index_head_dim=32,
)


class Fixed(torch.nn.Module):
    """Stands in for attention or experts: whatever goes in, the same comes out."""

    def __init__(self, *out: torch.Tensor | None) -> None:
        super().__init__()
        self.out = out

    def forward(self, *_: object, **__: object) -> object:
        """The fixed output, alone or as a tuple."""
        return self.out if len(self.out) > 1 else self.out[0]


def fill(module: torch.nn.Module, **tensors: torch.Tensor) -> torch.nn.Module:
    """A module with exactly these parameters."""
    for name, parameter in module.named_parameters():
        parameter.data = tensors.pop(name)
    assert not tensors, f"{module} has no {list(tensors)}"
    return module.requires_grad_(False).eval()


def check_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert expected.abs().max() > 0.1
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 7])
def test_streams_are_mixed_read_and_written(rows):
    """comb transposed (transformers#46172, Automodel#2154, Megatron-LM#4839), 20 rounds."""
    h, (fn, base, scale) = streams(1, rows, STREAMS, WIDTH), parameters(2, STREAMS, WIDTH)
    theirs = fill(v4.DeepseekV4HyperConnection(CONFIG), fn=fn, base=base, scale=scale)
    post, comb, read = theirs(h[None])
    mine = mixed(h, (fn, base, scale), norm_eps=EPS)
    check_close(mine[1], post[0])
    check_close(mine[2], comb[0])
    check_close(hc_collapse(h, mine[0]), read[0])
    block = v4.DeepseekV4DecoderLayer(CONFIG, 0).requires_grad_(False)
    for site in (block.attn_hc, block.ffn_hc):
        fill(site, fn=fn, base=base, scale=scale)
    sublayers = matrix(5, rows, WIDTH), matrix(6, rows, WIDTH)
    block.self_attn, block.mlp = Fixed(sublayers[0][None], None), Fixed(sublayers[1][None])
    expected = block(h[None])[0]
    for y in sublayers:
        _, post, comb = mixed(h, (fn, base, scale), norm_eps=EPS)
        h = hc_expand(y, h, post, comb)
    check_close(h, expected)


def test_the_gate_is_clamped_from_above_and_up_on_both_sides():
    gate, up = matrix(1, 40, 32) * 2, matrix(2, 40, 32) * 2
    expected = v4.DeepseekV4Experts(CONFIG)._apply_gate(torch.cat((gate, up), -1))
    check_close(swiglu(gate=gate, up=up, limit=LIMIT), expected)
    assert (gate < -LIMIT).any() and (gate > LIMIT).any() and (up.abs() > LIMIT).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_norms_round_once(dtype):
    x, weight = matrix(3, 9, WIDTH, dtype), numbers(4, WIDTH) / 4 + 1
    theirs = fill(v4.DeepseekV4RMSNorm(WIDTH, EPS), weight=weight)
    y, expected = rmsnorm(x=x, weight=weight, eps=EPS), theirs(x)
    assert y.dtype == expected.dtype == dtype
    rtol, equal = (2.0**-7, 0.99) if dtype == torch.bfloat16 else (1e-6, 0.5)
    torch.testing.assert_close(y, expected, rtol=rtol, atol=0)
    assert (y == expected).float().mean() > equal


@pytest.mark.parametrize("kind", ["main", "compress"])
def test_neighbouring_dims_are_turned_by_the_angles_of_the_layer_kind(kind):
    """pypto-lib#244: pairs (0, 1), not halves; transformers#45910: theta by the kind of layer."""
    x, positions = matrix(5, 6 * 4, 64).view(6, 4, 64), torch.tensor([0, 1, 2, 70, 900, 4095])
    cos, sin = v4.DeepseekV4RotaryEmbedding(CONFIG)(x, positions[None], layer_type=kind)
    expected = v4.apply_rotary_pos_emb(x, cos[0], sin[0])
    twice = cos[0].repeat_interleave(2, -1)
    signed = torch.stack((-sin[0], sin[0]), -1).flatten(1)  # as a RopeTable has them
    check_close(rope(x, twice, signed), expected)
    check_close(rope(expected, twice, signed, inverse=True), x)


@pytest.mark.parametrize("sink", [-80.0, 0.0, 3.0, 80.0])
@pytest.mark.parametrize("cores", [1, 2])
def test_attention_with_a_sink(sink, cores):
    """Window and entries, masked as they say it; the sink once (rocm-libraries#12227, #12229)."""
    c = case(5, 4, 64, 8, 6, start=4)
    c = c.but(sink=numbers(6, 4) + sink)
    near, far = Record("window", 64).unpack(c.window), Record("compressed", 64).unpack(c.entries)
    keys = torch.cat((near, far))
    age = c.position[:, None] - c.held
    hidden = torch.ones(5, len(keys), dtype=torch.bool)
    hidden[:, : len(near)] = (age < 0) | (age >= c.width) | (c.held < 0)
    hidden[torch.arange(5)[:, None], len(near) + c.selected] = False
    mask = torch.zeros(1, 1, 5, len(keys)).masked_fill(hidden, -torch.inf)
    module = SimpleNamespace(sinks=c.sink, num_key_value_groups=4, training=False)
    expected, _ = v4.eager_attention_forward(
        module, c.q.transpose(0, 1)[None], keys[None, None], keys[None, None], mask, 64**-0.5
    )
    y = sparse_attn[cores](*c.columns())
    torch.testing.assert_close(y, expected[0], rtol=0, atol=3e-6)
    assert (y.abs() > 1e-20).any() == (sink < 80)


def test_index_scores():
    """Per-head ReLU, the weight of the head, the sum (mlx-lm#531, 1Cat-vLLM#250)."""
    q, x = matrix(7, 5 * 16, 32).view(5, 16, 32), matrix(8, 5, WIDTH)
    keys = Record("index", 32).pack(matrix(9, 11, 32))
    projection = {"weights_proj.weight": matrix(1, 16, WIDTH)}
    theirs = fill(v4.DeepseekV4IndexerScorer(CONFIG), **projection)
    expected = theirs(q[None], Record("index", 32).unpack(keys)[None], x[None])[0]
    weights = theirs.weights_proj(x) * 32**-0.5 * 16**-0.5
    y = index_score(q=q, weights=weights, keys=keys, quantise=False, round_terms=False)
    assert (y - expected).abs().max() < 5e-6 * expected.abs().max() and (expected < 0).any()
