"""Rollback: after a block of tokens is taken back, nothing tells that it was ever there."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch

from dslearn.errors import StateError
from tests.support.models import INVARIANT, build, differences, prompt, small_config

RAW = small_config()
ROOM = 48
KEPT = prompt(RAW, 40, 4)
WRONG = (KEPT + 17) % RAW["vocab_size"]  # what a bad draft would propose


@pytest.fixture(scope="module")
def model():
    return build(RAW, INVARIANT)


@pytest.fixture(scope="module")
def fresh(model):
    """The state after one call on the first n tokens, made once per n."""
    made = {}

    def at(n: int):
        if n not in made:
            made[n] = model.new_state(1, ROOM)
            if n:
                model.forward(KEPT[:, :n], made[n])
        return deepcopy(made[n])

    return at


def draft(begin: int, right: int, count: int) -> torch.Tensor:
    """Tokens of positions begin..begin+count-1, the first `right` of them right, then wrong."""
    stop = begin + right
    return torch.cat((KEPT[:, begin:stop], WRONG[:, stop : begin + count]), 1)


@pytest.mark.parametrize("begin", [0, 1, 6, 7, 8, 15, 18])
@pytest.mark.parametrize("count", range(1, 7))
def test_every_position_of_a_block_can_be_returned_to(model, fresh, begin, count):
    for right in range(count + 1):
        state = fresh(begin)
        state.mark()
        model.forward(draft(begin, right, count), state)
        state.rollback(begin + right)
        assert state.position == begin + right
        bad = differences(state, fresh(begin + right))
        assert not bad, f"{count} tokens from {begin}, {right} kept: {bad}"


@pytest.mark.parametrize("begin", [5, 8])
def test_blocks_of_single_steps_and_of_more_than_a_window_roll_back(model, fresh, begin):
    for chunks in ([1] * 6, [3, 1, 2], [12], [8, 5], [1, 17]):
        for right in (0, 1, 3, 6):
            state, at, ids = fresh(begin), 0, draft(begin, right, sum(chunks))
            state.mark()
            for chunk in chunks:
                model.forward(ids[:, at : at + chunk], state)
                at += chunk
            state.rollback(begin + min(right, at))
            bad = differences(state, fresh(begin + min(right, at)))
            assert not bad, f"{chunks} from {begin}, {right} kept: {bad}"


def test_decoding_goes_on_after_a_rollback_as_if_nothing_had_been(model, fresh):
    want = model.forward(KEPT[:, :20])
    state = fresh(9)
    for _ in range(3):
        begin = state.position
        state.mark()
        model.forward(draft(begin, 2, 5), state)
        state.rollback(begin + 2)
        logits = model.forward(KEPT[:, begin + 2 : begin + 3], state)
        assert torch.equal(logits[:, 0], want[:, begin + 2])
        state.commit()
    assert state.position == 18 and not differences(state, fresh(18))


def test_a_block_can_be_shortened_again_and_again_and_refilled(model, fresh):
    state = fresh(7)
    state.mark()
    model.forward(draft(7, 4, 6), state)
    for target in (12, 11, 9):
        state.rollback(target)
    assert not differences(state, fresh(9))
    model.forward(draft(9, 3, 6), state)
    state.rollback(12)
    assert not differences(state, fresh(12))
    state.rollback(7)
    assert not differences(state, fresh(7))


def test_another_prompt_with_a_common_prefix_starts_from_there(model, fresh):
    for shared in (1, 5, 9, 13):  # odd: in the middle of a group
        state = fresh(0)
        state.mark()
        model.forward(draft(0, shared, 21), state)
        state.rollback(shared)
        logits = model.forward(KEPT[:, shared:21], state)
        assert torch.equal(logits, model.forward(KEPT[:, :21])[:, shared:]), f"{shared} shared"
        assert not differences(state, fresh(21))


def test_each_sequence_of_a_batch_goes_back_to_its_own_position(model, fresh):
    state = model.new_state(3, ROOM)
    model.forward(KEPT[:, :12].expand(3, -1), state, [9, 12, 5])
    state.mark()
    block = torch.cat([draft(9, 1, 5), draft(12, 0, 5), draft(5, 4, 5)])
    model.forward(block, state, [5, 4, 5])
    state.rollback([10, 12, 9])
    assert state.positions.tolist() == [10, 12, 9]
    for row, n in enumerate((10, 12, 9)):
        bad = differences(state, fresh(n), row=row)
        assert not bad, f"sequence {row}: {bad}"


def test_commit_keeps_the_block(model, fresh):
    state = fresh(6)
    state.mark()
    model.forward(KEPT[:, 6:10], state)
    state.commit()
    assert state.position == 10 and not differences(state, fresh(10))
    with pytest.raises(StateError, match="without mark"):
        state.rollback(8)


def test_marking_again_commits_what_was_open(model, fresh):
    state = fresh(6)
    state.mark()
    model.forward(KEPT[:, 6:9], state)
    state.mark()
    model.forward(KEPT[:, 9:12], state)
    with pytest.raises(StateError, match="must lie between the mark"):
        state.rollback(8)
    state.rollback(9)
    assert not differences(state, fresh(9))


@pytest.mark.parametrize("target", [5, 11, [6, 6], -1])
def test_positions_outside_the_block_are_refused_and_change_nothing(model, fresh, target):
    state = fresh(6)
    with pytest.raises(StateError, match="without mark"):
        state.rollback(6)
    state.mark()
    model.forward(KEPT[:, 6:10], state)
    with pytest.raises(StateError):
        state.rollback(target)
    assert state.position == 10 and not differences(state, fresh(10))


def test_wrong_sizes_and_foreign_states_are_refused(model):
    for batch, room in ((0, 8), (1, 0), (-1, 8)):
        with pytest.raises(StateError, match="at least 1"):
            model.new_state(batch, room)
    with pytest.raises(StateError, match="max_position_embeddings"):
        model.new_state(1, RAW["max_position_embeddings"] + 1)
    with pytest.raises(StateError, match="new state"):
        model.forward(KEPT[:, :3], model.new_state(2, 8))
    other = build(RAW).new_state(1, 8)
    with pytest.raises(StateError, match="new state"):
        model.forward(KEPT[:, :3], other)
