"""Batches: every sequence gets what it would get alone, whatever its neighbours do.

Shapes: B sequences of different lengths, right-padded to T columns; all under row invariance, so
that "the same" means the same bytes.
"""

from __future__ import annotations

import pytest
import torch

from dslearn.errors import StateError, UsageError
from tests.support.models import INVARIANT, build, differences, prompt, small_config

RAW = small_config()
ROOM = 40
LENGTHS = [5, 12, 9]


@pytest.fixture(scope="module")
def model():
    return build(RAW, INVARIANT)


@pytest.fixture(scope="module")
def texts():
    """Three prompts of 32 tokens; a test uses the front of each."""
    return torch.cat([prompt(RAW, 32, seed) for seed in (1, 2, 3)])


def alone(model, text, count):
    """Logits and state of the first `count` tokens, as a batch of one in one call."""
    state = model.new_state(1, ROOM)
    return (model.forward(text[None, :count], state) if count else None), state


def check_rows(model, state, texts, counts):
    for row, count in enumerate(counts):
        bad = differences(state, alone(model, texts[row], count)[1], row=row)
        assert not bad, f"sequence {row} of {count} tokens: {bad}"


def padded(texts, begins, counts, filler):
    """Columns of max(counts) tokens from begins[b] on; padding is `filler`."""
    out = torch.full((len(texts), max(counts)), filler)
    for row, (begin, count) in enumerate(zip(begins, counts, strict=True)):
        out[row, :count] = texts[row, begin : begin + count]
    return out


@pytest.mark.parametrize("filler", [0, 63])
def test_a_padded_prefill_is_each_prompt_alone(model, texts, filler):
    state = model.new_state(3, ROOM)
    logits = model.forward(padded(texts, [0] * 3, LENGTHS, filler), state, LENGTHS)
    assert state.positions.tolist() == LENGTHS
    for row, count in enumerate(LENGTHS):
        assert torch.equal(logits[row, :count], alone(model, texts[row], count)[0][0])
    check_rows(model, state, texts, LENGTHS)


def test_ragged_steps_continue_every_sequence_from_its_own_position(model, texts):
    state, counts = model.new_state(3, ROOM), list(LENGTHS)
    model.forward(padded(texts, [0] * 3, LENGTHS, 0), state, torch.tensor(LENGTHS))
    for extra in ([1, 1, 1], [1, 1, 1], [3, 1, 2], [0, 2, 0], [2, 9, 1]):
        logits = model.forward(padded(texts, counts, extra, 7), state, extra)
        for row, (begin, more) in enumerate(zip(counts, extra, strict=True)):
            if more:
                want = alone(model, texts[row], begin + more)[0][0, begin:]
                assert torch.equal(logits[row, :more], want), f"{extra}, sequence {row}"
        counts = [a + b for a, b in zip(counts, extra, strict=True)]
    assert state.positions.tolist() == counts == [12, 26, 14]
    check_rows(model, state, texts, counts)


def test_growing_a_batch_from_3_to_8_with_empty_rows_changes_no_byte(model, texts):
    small, large = model.new_state(3, ROOM), model.new_state(8, ROOM)
    ids = padded(texts, [0] * 3, LENGTHS, 0)
    wide = torch.cat((ids, torch.full((5, 12), 9)))
    a = model.forward(ids, small, LENGTHS)
    b = model.forward(wide, large, LENGTHS + [0] * 5)
    for row, count in enumerate(LENGTHS):
        assert torch.equal(a[row, :count], b[row, :count])
    step = padded(texts, LENGTHS, [1, 1, 1], 0)
    a = model.forward(step, small)
    b = model.forward(torch.cat((step, torch.full((5, 1), 9))), large, [1] * 3 + [0] * 5)
    assert torch.equal(a, b[:3])
    check_rows(model, large, texts, [6, 13, 10])
    for row in range(3, 8):
        assert not differences(large, model.new_state(1, ROOM), row=row), "an empty row was written"


def test_a_call_in_which_nobody_has_a_token_changes_nothing(model, texts):
    state = model.new_state(2, ROOM)
    model.forward(texts[:2, :4], state, [0, 0])
    assert state.position == 0 and not differences(state, model.new_state(2, ROOM))


def test_one_text_does_not_see_its_neighbour(model, texts):
    both = model.forward(texts[:2, :12])
    other = model.forward(torch.stack((texts[0, :12], texts[2, :12])))
    assert torch.equal(both[0], other[0]) and not torch.equal(both[1], other[1])


def test_position_is_for_even_batches_only(model, texts):
    state = model.new_state(2, ROOM)
    model.forward(texts[:2, :4], state)
    assert state.position == 4
    model.forward(texts[:2, 4:6], state, [2, 1])
    with pytest.raises(StateError, match="differ"):
        _ = state.position


@pytest.mark.parametrize("lengths", [[1], [1, 2, 3, 4], [-1, 1, 1], [5, 1, 1]])
def test_lengths_out_of_range_are_refused_and_leave_the_state_alone(model, texts, lengths):
    state = model.new_state(3, ROOM)
    with pytest.raises(UsageError, match="lengths"):
        model.forward(texts[:, :4], state, lengths)
    assert not differences(state, model.new_state(3, ROOM))


def test_a_full_state_refuses_the_longest_sequence_before_it_writes(model, texts):
    state = model.new_state(3, 12)
    model.forward(texts[:, :9], state, [9, 8, 2])
    before = model.new_state(3, 12)
    model.forward(texts[:, :9], before, [9, 8, 2])
    with pytest.raises(StateError, match="max_len=12"):
        model.forward(texts[:, :4], state, [4, 4, 4])
    assert not differences(state, before)
    model.forward(texts[:, :4], state, [3, 4, 0])
    assert state.positions.tolist() == [12, 12, 2]
