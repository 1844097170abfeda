"""Blocks that V4.1 kept from V4, beside transformers' `deepseek_v4`: within 1e-5.

That implementation has no lagged pre-mix, no cross-layer sharing and no quantisation, and its
attention norms each query head, which V4.1 does not; what is compared is what both have.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dslearn.model.hyper import collapse, expand
from dslearn.model.indexer import index_scores
from dslearn.model.moe import clamped_swiglu
from tests.support.models import build, prompt, small_config, weights

pytest.importorskip("transformers")
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as v4
from transformers.models.deepseek_v4.configuration_deepseek_v4 import DeepseekV4Config

RAW = small_config(
    hidden_size=96,
    num_attention_heads=4,
    head_dim=64,
    qk_rope_head_dim=16,
    num_hidden_layers=1,
    compress_ratios=[0],
    kv_source_layer_ids=[],
    index_source_layer_ids=[],
    candidate_source_layer_id=None,
    engram_layer_ids=[],
    dspark_target_layer_ids=[],
    n_routed_experts=9,
    num_experts_per_tok=3,
    hc_mult=4,
)
THEIRS = {
    "vocab_size": 64,
    "hidden_size": 96,
    "num_hidden_layers": 1,
    "layer_types": ["sliding_attention"],
    "mlp_layer_types": ["moe"],
    "moe_intermediate_size": RAW["moe_intermediate_size"],
    "intermediate_size": RAW["moe_intermediate_size"],
    "num_attention_heads": 4,
    "head_dim": 64,
    "qk_rope_head_dim": 16,
    "partial_rotary_factor": 0.25,
    "q_lora_rank": RAW["q_lora_rank"],
    "o_groups": RAW["o_groups"],
    "o_lora_rank": RAW["o_lora_rank"],
    "sliding_window": RAW["sliding_window"],
    "rope_theta": RAW["rope_theta"],
    "compress_rope_theta": RAW["compress_rope_theta"],
    "n_routed_experts": 9,
    "num_experts_per_tok": 3,
    "routed_scaling_factor": RAW["routed_scaling_factor"],
    "swiglu_limit": RAW["swiglu_limit"],
    "rms_norm_eps": RAW["rms_norm_eps"],
    "hc_mult": 4,
    "hc_sinkhorn_iters": RAW["hc_sinkhorn_iters"],
    "hc_eps": RAW["hc_eps"],
    "index_n_heads": 16,
    "index_head_dim": 32,
    "attn_implementation": "eager",
}


@pytest.fixture(scope="module")
def config():
    return DeepseekV4Config(**THEIRS)


@pytest.fixture(scope="module")
def model():
    return build(RAW)


def draw(seed: int, *shape: int, width: float = 1.0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0, width, shape)).float()


def fill(module: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> torch.nn.Module:
    """Give a transformers module exactly these parameters."""
    missing = dict(module.named_parameters()).keys() - tensors.keys()
    assert not missing, missing
    module.load_state_dict(tensors, strict=False)
    return module.requires_grad_(False).eval()


class Fixed(torch.nn.Module):
    """Stands in for attention or experts: whatever goes in, the same comes out."""

    def __init__(self, *out: torch.Tensor | None) -> None:
        super().__init__()
        self.out = out

    def forward(self, *_: object, **__: object) -> object:
        """The fixed output, alone or as a tuple."""
        return self.out if len(self.out) > 1 else self.out[0]


def coefficients(site: str) -> dict[str, torch.Tensor]:
    return {name: weights(RAW)[f"layers.0.{site}_{name}"] for name in ("fn", "base", "scale")}


@pytest.mark.parametrize("tokens", [1, 7])
@pytest.mark.parametrize("site", ["hc_attn", "hc_ffn"])
def test_hyper_connection_coefficients(config, model, site, tokens):
    """pre, post and comb; also of a prompt of length 1 (maxtext#4337)."""
    theirs = fill(v4.DeepseekV4HyperConnection(config), coefficients(site))
    h = draw(1, 2, tokens, 4, 96, width=2)
    post, comb, read = theirs(h)
    mine = getattr(model.layers[0], site)(h)
    assert (mine[1] - post).abs().max() < 1e-5 and (mine[2] - comb).abs().max() < 1e-5
    assert (collapse(h, mine[0], model.arith) - read).abs().max() < 1e-5


@pytest.mark.parametrize("tokens", [1, 7])
def test_streams_are_written_back_as_their_decoder_layer_does(config, model, tokens):
    """comb transposed (transformers#46172, Automodel#2154, Megatron-LM#4839), post on the output.

    Both sublayers of their layer give fixed outputs, so that only the streams are compared.
    """
    layer = v4.DeepseekV4DecoderLayer(config, 0).requires_grad_(False)
    fill(layer.attn_hc, coefficients("hc_attn"))
    fill(layer.ffn_hc, coefficients("hc_ffn"))
    first, second = draw(2, 2, tokens, 96), draw(3, 2, tokens, 96)
    layer.self_attn, layer.mlp = Fixed(first, None), Fixed(second)
    h = draw(1, 2, tokens, 4, 96, width=2)
    want = layer(h)
    mine, ours = h, model.layers[0]
    for site, y in ((ours.hc_attn, first), (ours.hc_ffn, second)):
        _, post, comb = site(mine)
        mine = expand(y, mine, post, comb, model.arith)
    assert (mine - want).abs().max() < 1e-5


@pytest.mark.parametrize("seed", range(3))
def test_router(config, model, seed):
    w = {"weight": weights(RAW)["layers.0.ffn.gate.weight"] * (1 + 10 * seed)}
    bias = draw(seed, 9, width=0.3)
    theirs = fill(v4.DeepseekV4TopKRouter(config), w | {"e_score_correction_bias": bias})
    gate = model.layers[0].ffn.gate
    kept = gate.weight.clone(), gate.bias.clone()
    gate.weight.copy_(w["weight"]), gate.bias.copy_(bias)
    x = draw(7 + seed, 50, 96)
    _, shares, ids = theirs(x)
    mine_ids, mine_shares = gate(x, None)
    gate.weight.copy_(kept[0]), gate.bias.copy_(kept[1])
    order, mine_order = ids.argsort(-1), mine_ids.argsort(-1)
    assert torch.equal(ids.gather(1, order), mine_ids.gather(1, mine_order))
    gap = shares.gather(1, order) - mine_shares.gather(1, mine_order)
    assert gap.abs().max() < 1e-5 and torch.allclose(mine_shares.sum(1), torch.tensor(1.5))


def test_clamped_swiglu(config):
    """Gate from above only, up from both sides, before SiLU."""
    gate_up = torch.cat((draw(1, 40, 32, width=4), draw(2, 40, 32, width=4)), -1)
    theirs = v4.DeepseekV4Experts(config)._apply_gate(gate_up)
    gate, up = gate_up.chunk(2, -1)
    mine = clamped_swiglu(gate, up, RAW["swiglu_limit"])
    assert (mine - theirs).abs().max() < 1e-5
    limit = RAW["swiglu_limit"]
    assert (gate < -limit).any() and (gate > limit).any() and (up.abs() > limit).any()


def test_mixture_of_experts(config, model):
    """Router, experts and shared expert together (they weigh after w2, which is linear)."""
    w, name = weights(RAW), "layers.0.ffn"
    experts = [[w[f"{name}.experts.{e}.w{n}.weight"] for e in range(9)] for n in (1, 2, 3)]
    theirs = fill(
        v4.DeepseekV4SparseMoeBlock(config, 0),
        {
            "gate.weight": w[f"{name}.gate.weight"],
            "gate.e_score_correction_bias": w[f"{name}.gate.bias"],
            "experts.gate_up_proj": torch.cat([torch.stack(experts[n]) for n in (0, 2)], 1),
            "experts.down_proj": torch.stack(experts[1]),
            "shared_experts.gate_proj.weight": w[f"{name}.shared_experts.w1.weight"],
            "shared_experts.up_proj.weight": w[f"{name}.shared_experts.w3.weight"],
            "shared_experts.down_proj.weight": w[f"{name}.shared_experts.w2.weight"],
        },
    )
    for rows in (1, 30):
        x = draw(rows, 1, rows, 96)
        gap = (model.layers[0].ffn(x[0])[0] - theirs(x)[0]).abs().max()
        assert gap < 1e-5 * x.abs().max(), f"{rows} rows: {gap}"


def test_sink_attention(config, model):
    """A whole window-only attention: projections, norms, rotation, sink, inverse rotation, groups.

    The comparison is with their module without its per-head query norm.
    """
    w, name = weights(RAW), "layers.0.attn"
    pairs = {
        "q_a_proj.weight": "wq_a.weight",
        "q_a_norm.weight": "q_norm.weight",
        "q_b_proj.weight": "wq_b.weight",
        "kv_proj.weight": "wkv.weight",
        "kv_norm.weight": "kv_norm.weight",
        "o_a_proj.weight": "wo_a.weight",
        "o_b_proj.weight": "wo_b.weight",
        "sinks": "attn_sink",
    }
    tensors = {theirs: w[f"{name}.{mine}"] for theirs, mine in pairs.items()}
    theirs = fill(v4.DeepseekV4Attention(config, 0), tensors)
    theirs.q_b_norm = torch.nn.Identity()
    seen = []
    hook = model.layers[0].attn.register_forward_hook(
        lambda _, args, out: seen.append((args, out[0]))
    )
    tokens = 21
    model.forward(prompt(RAW, tokens))
    hook.remove()
    x, mine = seen[0][0][0], seen[0][1]
    positions = torch.arange(tokens)[None]
    rotary = v4.DeepseekV4RotaryEmbedding(config)
    angles = {kind: rotary(x, positions, layer_type=kind) for kind in ("main", "compress")}
    back = positions[0][:, None] - positions[0]
    allowed = (back >= 0) & (back < RAW["sliding_window"])
    mask = torch.zeros(1, 1, tokens, tokens).masked_fill(~allowed, torch.finfo(x.dtype).min)
    want, _ = theirs(x, angles, positions, mask)
    assert (mine - want).abs().max() < 1e-5 * max(1.0, float(want.abs().max()))


def test_index_scores(config):
    """Per-head ReLU, then the weight of the head, then the sum (mlx-lm#531, 1Cat-vLLM#250)."""
    theirs = fill(v4.DeepseekV4IndexerScorer(config), {"weights_proj.weight": draw(1, 16, 96)})
    q, keys, x = draw(2, 2, 5, 16, 32), draw(3, 2, 11, 32), draw(4, 2, 5, 96)
    want = theirs(q, keys, x)
    scale = 32**-0.5 * 16**-0.5
    mine = index_scores(q, keys, theirs.weights_proj(x) * scale, build(RAW).arith)
    assert (mine - want).abs().max() < 1e-5 * want.abs().max() and (want < 0).any()
