"""Rotary tables: YaRN digits, fp32 angles, interleaved pairs, one theta per kind of layer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dslearn.config import Yarn
from dslearn.model.rope import RopeTable, frequencies, rotate
from tests.support.models import build, prompt, small_config

YARN = Yarn(16, 65536, 32, 1)
LOCAL = small_config(
    num_hidden_layers=1,
    compress_ratios=[0],
    kv_source_layer_ids=[],
    index_source_layer_ids=[],
    candidate_source_layer_id=None,
    engram_layer_ids=[],
    dspark_target_layer_ids=[],
)


def turned(x: torch.Tensor, positions: list[int], table: RopeTable, **options) -> torch.Tensor:
    table.reserve(max(positions) + 1)
    return rotate(x, *table.at(torch.tensor(positions)), **options)


def test_yarn_frequencies_have_the_published_digits():
    f = frequencies(64, 160000, YARN)
    digits = {
        0: "1",
        14: "0.0052868566",
        15: "0.0036355385",
        16: "0.0022656249",
        20: "0.00029697779",
        24: "1.9531253e-05",
        25: "5.3723124e-06",
        31: "5.6805294e-07",
    }
    assert {j: f"{f[j]:.8g}" for j in digits} == digits
    plain = frequencies(64, 160000, None)
    assert torch.equal(f[:16], plain[:16]) and torch.equal(f[25:], plain[25:] / 16)


def test_the_angle_is_an_fp32_product():
    """Position 65,535 in exact arithmetic differs from this by 1e-3 in the cosine."""
    for yarn, position in ((None, 65_535), (YARN, 60_001)):
        f = frequencies(64, 160000, yarn).numpy()
        angle = (np.float32(position) * f).astype(np.float64)
        x = torch.zeros(1, 64)
        x[:, ::2] = 1.0
        out = turned(x, [position], RopeTable(64, 160000, yarn))[0].numpy()
        assert np.abs(out[::2] - np.cos(angle)).max() < 1e-6
        assert np.abs(out[1::2] - np.sin(angle)).max() < 1e-6


def test_neighbours_turn_together_at_the_end_of_a_head():
    """pypto-lib#244: (0, 1) is a pair, not (0, 32)."""
    table = RopeTable(64, 10000, None)
    for pair in (0, 3, 31):
        x = torch.zeros(1, 96)
        x[0, 32 + 2 * pair] = 1.0
        out = turned(x, [5], table)[0]
        angle = 5 * float(table.freqs[pair])
        assert sorted(set(out.nonzero().flatten().tolist())) == [32 + 2 * pair, 33 + 2 * pair]
        assert np.allclose(out[32 + 2 * pair :][:2], [np.cos(angle), np.sin(angle)], atol=1e-6)


def test_the_front_of_a_head_stands_still_and_the_inverse_turns_back():
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((3, 40))).float()
    table = RopeTable(8, 10000, None)
    out = turned(x, [0, 7, 123], table)
    assert torch.equal(out[:, :32], x[:, :32]) and torch.equal(out[0], x[0])
    assert not torch.allclose(out[1:, 32:], x[1:, 32:], atol=0.1)
    assert torch.allclose(turned(out, [0, 7, 123], table, inverse=True), x, atol=1e-5)
    assert torch.allclose(out.norm(dim=-1), x.norm(dim=-1), atol=1e-5)


def test_a_table_that_grew_is_the_table_that_was_made_large():
    small, large = RopeTable(8, 10000, YARN), RopeTable(8, 10000, YARN)
    large.reserve(3000)
    for size in (1, 256, 257, 3000):
        small.reserve(size)
        at = torch.tensor([0, size - 1])
        for mine, theirs in zip(small.at(at), large.at(at), strict=True):
            assert torch.equal(mine, theirs)


@pytest.mark.parametrize(
    ("change", "local_moves"),
    [
        ({"rope_theta": 500.0}, True),
        ({"compress_rope_theta": 500.0}, False),
        ({"rope_scaling": None}, False),
    ],
)
def test_each_kind_of_layer_has_its_own_theta(change, local_moves):
    """transformers#45910, sglang#34788: window-only layers turn without YaRN."""
    ids = prompt(LOCAL, 8)
    before, after = build(LOCAL).forward(ids), build(LOCAL | change).forward(ids)
    assert torch.equal(before, after) != local_moves
    both = small_config(qk_rope_head_dim=32)
    ids = prompt(both, 8)
    seen = []
    for raw in (both, both | change):
        trace: dict = {}
        build(raw).forward(ids, trace=trace)
        seen.append([layer["streams"] for layer in trace["layers"]])
    same = [torch.equal(a, b) for a, b in zip(*seen, strict=True)]
    # streams enter a layer: index 1 is what layer 0 (window only) left, index 2 what layer 1 did
    assert same[:3] == ([True, False, False] if local_moves else [True, True, False])
