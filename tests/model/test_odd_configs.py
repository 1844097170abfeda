"""Configs at the edge of what the fields allow, each beside its NumPy twin, in one call and two."""

from __future__ import annotations

import pytest
import torch

from tests.support.models import build, prompt, small_config, twin

NO_LONG_RANGE = {
    "compress_ratios": [0] * 5,
    "kv_source_layer_ids": [],
    "index_source_layer_ids": [],
    "candidate_source_layer_id": None,
}
CASES = {
    "window of one token": {"sliding_window": 1},
    "window longer than the text": {"sliding_window": 64},
    "one stream": {"hc_mult": 1},
    "two streams": {"hc_mult": 2},
    "five streams, three rounds": {"hc_mult": 5, "hc_sinkhorn_iters": 3, "hc_eps": 1e-3},
    "window only": NO_LONG_RANGE,
    "window only, no Engram": NO_LONG_RANGE | {"engram_layer_ids": []},
    "compressed from the first layer": {
        "compress_ratios": [1, 1, 2, 2, 2],
        "kv_source_layer_ids": [0, 2],
        "index_source_layer_ids": [0, 1, 2, 4],
        "candidate_source_layer_id": 2,
        "engram_layer_ids": [0, 4],
    },
    "a source after the candidates": {
        "compress_ratios": [1, 1, 2, 2, 2],
        "kv_source_layer_ids": [0, 2],
        "index_source_layer_ids": [0, 1, 2, 4],
        "candidate_source_layer_id": 0,
    },
    "every layer its own source": {
        "compress_ratios": [1, 2, 1, 2, 1],
        "kv_source_layer_ids": [0, 1, 2, 3, 4],
        "index_source_layer_ids": [0, 1, 2, 3, 4],
        "candidate_source_layer_id": None,
    },
    "top-k of one, one candidate": {
        "index_topk": 1,
        "candidate_topk_blocks": 1,
        "candidate_block_size": 1,
    },
    "top-k above everything": {"index_topk": 500, "candidate_topk_blocks": 500},
    "whole heads rotated, 17 index heads": {
        "qk_rope_head_dim": 32,
        "index_n_heads": 17,
        "rope_scaling": None,
    },
    "one group of three heads": {"num_attention_heads": 3, "o_groups": 1},
    "a group per head": {"num_attention_heads": 3, "o_groups": 3},
    "every expert": {"num_experts_per_tok": 4},
    "one expert of seven": {"n_routed_experts": 7, "num_experts_per_tok": 1},
    "bigrams": {"engram_max_ngram_size": 2, "engram_n_heads": 3},
    "odd widths": {
        "hidden_size": 36,
        "moe_intermediate_size": 20,
        "head_dim": 24,
        "index_head_dim": 10,
        "q_lora_rank": 14,
        "o_lora_rank": 6,
        "engram_head_dim": 10,
    },
    "a loud norm eps": {"rms_norm_eps": 1e-3},
}


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_the_twin(case):
    raw = small_config(**CASES[case])
    model, ids = build(raw), prompt(raw, 19)
    want = torch.from_numpy(twin(raw, activations=False, caches=False).forward(ids[0].numpy()))
    assert (model.forward(ids)[0] - want).abs().max() < 1e-4
    state = model.new_state(1, 19)
    parts = [model.forward(ids[:, a:b], state)[0] for a, b in ((0, 1), (1, 8), (8, 18), (18, 19))]
    assert (torch.cat(parts) - want).abs().max() < 1e-4
