"""tiny with one field changed: other numbers, the shipped files untouched."""

from __future__ import annotations

import pytest
import torch

import dslearn
from dslearn.checkpoint.hashing import target_hash
from dslearn.engine.lm import model_directory
from dslearn.errors import UsageError
from dslearn.lessons.broken import broken

IDS = [list(range(40))]


def test_a_changed_field_changes_numbers_and_no_file():
    before = target_hash(model_directory("tiny"))
    lm, right = broken(sliding_window=31), dslearn.load("tiny")
    assert lm.config.sliding_window == 31 and right.config.sliding_window == 32
    same, moved = lm.forward(IDS)[0].sub(right.forward(IDS)[0]).abs().amax(-1).split([31, 9])
    assert not same.any() and moved.min() > 1e-3, "the first 31 tokens see the whole text"
    assert target_hash(model_directory("tiny")) == before


def test_nothing_wrong_is_tiny():
    assert torch.equal(broken().forward(IDS), dslearn.load("tiny").forward(IDS))


def test_an_unknown_field_is_refused():
    with pytest.raises(UsageError, match="no_such_field: no field of the text_config of tiny"):
        broken(no_such_field=1)
