"""Chunked prefill and decode: any way to cut a prompt gives what one call gives.

Shapes: N tokens of the prompt. A call of tokens a..b-1 on the state that one call left at a must
give the logits and the state of one call at b. Every chunking is a path of such edges, so
checking all N(N+1)/2 edges checks all 2^(N-1) chunkings.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from itertools import combinations, pairwise

import pytest
import torch

from dslearn.numerics import Numerics
from tests.support.models import EXACT, INVARIANT, build, differences, prompt, small_config

ROOM = 40
# around the window (8), its second lap, group ends (2) and candidate blocks (2 entries of 1 or 2)
BOUNDS = (0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 24, 25)
EDGES = [
    (a, b)
    for a, b in combinations(BOUNDS, 2)
    if b - a in (1, 2, 8, 9) or a in (1, 7, 9, 16) or b == 25
]
# moe_intermediate_size 48 and 3 streams leave tails behind the vector registers of every CPU
ODD = small_config(moe_intermediate_size=48)


class OneShot:
    """States and logits after one call on each wanted prefix of one prompt."""

    def __init__(self, raw: dict, numerics: Numerics, ends: tuple[int, ...]) -> None:
        self.model, self.ids = build(raw, numerics), prompt(raw, max(ends))
        self.states, self.logits = {}, {}
        for end in ends:
            self.states[end] = self.model.new_state(1, ROOM)
            if end:
                self.logits[end] = self.model.forward(self.ids[:, :end], self.states[end])

    def check_edge(self, a: int, b: int, tolerance: float) -> None:
        """Tokens a..b-1 after the state at a: the logits and the state of one call at b."""
        state = deepcopy(self.states[a])
        logits = self.model.forward(self.ids[:, a:b], state)
        gap = (logits - self.logits[b][:, a:]).abs().max().item()
        assert gap <= tolerance, f"tokens {a}..{b - 1}: logits differ by {gap:.1e}"
        bad = differences(state, self.states[b], tolerance=tolerance)
        assert not bad, f"tokens {a}..{b - 1} leave other caches: {bad}"


@pytest.fixture(scope="module")
def invariant():
    return OneShot(small_config(), INVARIANT, tuple(range(13)))


@pytest.fixture(scope="module")
def exact():
    return OneShot(small_config(), EXACT, tuple(range(13)))


@pytest.mark.parametrize("start", range(12))
def test_every_chunking_of_12_tokens_is_one_call_to_the_byte(invariant, start):
    for end in range(start + 1, 13):
        invariant.check_edge(start, end, 0.0)


@pytest.mark.parametrize("start", range(12))
def test_every_chunking_of_12_tokens_is_one_call_within_1e_4_without_row_invariance(exact, start):
    for end in range(start + 1, 13):
        exact.check_edge(start, end, 1e-4)


@pytest.mark.parametrize(
    "chunks",
    [[1] * 12, [2] * 6, [3] * 4, [1, 11], [11, 1], [5, 7], [1, 2, 4, 5], [8, 1, 1, 2]],
    ids=lambda chunks: "-".join(map(str, chunks)),
)
def test_whole_paths_of_chunks_agree_too(invariant, chunks):
    state, got = invariant.model.new_state(1, ROOM), []
    ends = [0, *torch.tensor(chunks).cumsum(0).tolist()]
    for a, b in pairwise(ends):
        got.append(invariant.model.forward(invariant.ids[:, a:b], state))
    assert torch.equal(torch.cat(got, 1), invariant.logits[12])
    assert not differences(state, invariant.states[12])


def test_a_call_without_a_state_is_the_call_on_a_new_one(invariant, exact):
    for case, tolerance in ((invariant, 0.0), (exact, 1e-4)):
        for end in (1, 2, 7, 12):
            logits = case.model.forward(case.ids[:, :end])
            assert (logits - case.logits[end]).abs().max() <= tolerance


@pytest.mark.parametrize(
    "numerics",
    [
        INVARIANT,
        replace(INVARIANT, activations=False, caches=False),
        replace(INVARIANT, arithmetic="bf16", fp8_max=240),
    ],
    ids=["quantised", "plain", "bf16"],
)
def test_boundaries_of_window_groups_and_blocks_to_the_byte(numerics):
    raw = small_config() if numerics.activations else ODD
    case = OneShot(raw, numerics, BOUNDS)
    for a, b in EDGES:
        case.check_edge(a, b, 0.0)


def test_boundaries_within_1e_4_without_row_invariance():
    case = OneShot(ODD, EXACT, BOUNDS)
    for a, b in EDGES:
        case.check_edge(a, b, 1e-4)


@pytest.mark.parametrize("length", [7, 8, 9, 16, 17])
def test_prefill_then_single_steps_past_the_window(length):
    case = OneShot(small_config(), INVARIANT, (length, length + 3))
    state = deepcopy(case.states[length])
    for p in range(length, length + 3):
        logits = case.model.forward(case.ids[:, p : p + 1], state)
        assert torch.equal(logits[:, 0], case.logits[length + 3][:, p]), f"position {p}"
    assert not differences(state, case.states[length + 3])
