"""Bug reports of other engines about caches, each run against this one.

A state is made dirty first: every slot that no token has reached holds NaN (or 0xff, which is NaN
in every code and scale), the history holds a huge id. None of it may ever be read or kept.
"""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch

from dslearn import backend
from dslearn.numerics import Numerics
from tests.support.models import EXACT, INVARIANT, build, prompt, small_config, tensors_of

RAW = small_config()
ROOM = 24
IDS = torch.cat([prompt(RAW, 20, seed) for seed in (1, 2, 3)])


def dirty(state):
    """Fill what a new state has not written."""
    for path, x in tensors_of(state):
        if path.endswith("history"):
            x[:, state.reach :] = 2**40
        elif path.endswith(("data", ".u", ".g")):
            x.fill_(torch.nan if x.is_floating_point() else 255)
    return state


@pytest.mark.parametrize("numerics", [INVARIANT, EXACT, Numerics()], ids=["bytes", "plain", "fp32"])
def test_unused_slots_may_hold_nan(numerics):
    """sglang#32477, vllm#13922: 0 * NaN from padding poisoned live rows."""
    model, lengths = build(RAW, numerics), [3, 11, 1]
    states = [model.new_state(3, ROOM), dirty(model.new_state(3, ROOM))]
    clean, unclean = (model.forward(IDS[:, :11], state, lengths) for state in states)
    for row, length in enumerate(lengths):
        assert torch.equal(clean[row, :length], unclean[row, :length]), f"prefill of {length}"
    for step in range(3):
        columns = torch.tensor(lengths)[:, None] + step
        clean, unclean = (model.forward(IDS.gather(1, columns), state) for state in states)
        assert clean.isfinite().all() and torch.equal(clean, unclean), f"step {step}"


def test_unused_slots_may_hold_nan_for_kernels_too():
    model, lengths = build(RAW, Numerics()), [3, 11]
    states = [model.new_state(2, ROOM), dirty(model.new_state(2, ROOM))]
    with backend.use("sim"):
        clean, unclean = (model.forward(IDS[:2, :11], state, lengths) for state in states)
        for row, length in enumerate(lengths):
            assert torch.equal(clean[row, :length], unclean[row, :length])
        step = torch.stack((IDS[0, 3:4], IDS[1, 11:12]))
        clean, unclean = (model.forward(step, state) for state in states)
    assert clean.isfinite().all() and torch.equal(clean, unclean)


@pytest.mark.parametrize("numerics", [INVARIANT, EXACT], ids=["bytes", "plain"])
def test_padding_writes_to_the_scratch_slot_alone(numerics):
    """vllm#43810, #43869: slot -1 of a padding row wrapped to the last block."""
    model = build(RAW, numerics)
    state = dirty(model.new_state(2, ROOM))
    before = dict(tensors_of(deepcopy(state)))
    model.forward(IDS[:2, :9], state, [3, 0])
    window, ratios = RAW["sliding_window"], RAW["compress_ratios"]
    for path, now in tensors_of(state):
        if not path.endswith(("data", "history")):
            continue
        changed = now != before[path]
        if now.is_floating_point():
            changed &= ~(now.isnan() & before[path].isnan())
        changed = changed.flatten(2).any(-1) if changed.dim() > 2 else changed
        touched = [set(row.nonzero().flatten().tolist()) for row in changed]
        scratch = now.shape[1] - 1
        if path.endswith("history"):
            wanted = {state.reach, state.reach + 1, state.reach + 2}
        elif now.shape[1] == window + 1:
            wanted = {0, 1, 2}
        else:
            layer = int(path.split("[")[1].split("]")[0])
            wanted = set(range(3 // ratios[layer]))
        assert touched[0] - {scratch} == wanted, f"{path}, the row of three tokens"
        assert touched[1] <= {scratch}, f"{path}, the row that only pads"


def test_an_inactive_row_keeps_its_open_group():
    """Rapid-MLX#1469: compressor state moved while its sequence stood still."""
    model = build(RAW, INVARIANT)
    state = model.new_state(2, ROOM)
    model.forward(IDS[:2, :3], state)  # odd: token 2 waits for its partner in both rows
    waiting = {path: x[1].clone() for path, x in tensors_of(state) if path.endswith((".u", ".g"))}
    assert waiting and all(x.isfinite().all() for x in waiting.values())
    model.forward(IDS[:2, 3:6], state, [3, 0])
    for path, x in tensors_of(state):
        if path in waiting:
            assert torch.equal(x[1], waiting[path]), path
    want = model.forward(IDS[1:2, :6])
    assert torch.equal(model.forward(IDS[:2, 3:6], state, [0, 3])[1], want[0, 3:])


def test_a_closed_group_waits_for_nothing():
    model = build(RAW, INVARIANT)
    state = model.new_state(1, ROOM)
    for stop in range(1, 6):
        model.forward(IDS[:1, stop - 1 : stop], state)
        for path, x in tensors_of(state):
            if path.endswith(".u"):
                assert x.any() == stop % 2, f"{path} after {stop} tokens"
            elif path.endswith(".g"):
                assert x.isfinite().all() == stop % 2, f"{path} after {stop} tokens"


@pytest.mark.parametrize("numerics", [INVARIANT, EXACT], ids=["bytes", "plain"])
def test_records_have_the_strides_of_the_format_table(numerics):
    """vllm#47716, #56893: records reshaped to another width than they have."""
    cfg = small_config(head_dim=64, index_head_dim=32)
    state = build(cfg, numerics).new_state(1, 10)
    packed = (66, 36, 17) if numerics.caches else (64, 64, 32)
    for cache, ratio in zip(state.layers, cfg["compress_ratios"], strict=True):
        assert cache.ring.data.shape == (1, 9, packed[0])
        if cache.entries is not None:
            assert cache.entries.data.shape == (1, 10 // ratio + 1, packed[1])
            assert cache.index_keys.data.shape == (1, 10 // ratio + 1, packed[2])
    owners = [i for i, cache in enumerate(state.layers) if cache.entries is not None]
    assert owners == cfg["kv_source_layer_ids"]


def test_positions_stay_contiguous_over_two_turns():
    """Whallm#12: the end token was fed twice and shifted all that followed."""
    model = build(RAW, INVARIANT)
    state = model.new_state(1, ROOM)
    turns = [IDS[:1, :7], IDS[:1, 7:8], IDS[:1, 8:13], IDS[:1, 13:14]]
    seen = []
    for turn in turns:
        seen.append(state.position)
        last = model.forward(turn, state)
    assert seen == [0, 7, 8, 13] and state.position == 14
    assert torch.equal(last[:, -1], model.forward(IDS[:1, :14])[:, -1])


def test_a_state_filled_to_its_last_slot_is_still_right():
    model = build(RAW, INVARIANT)
    for room in (8, 9, 11):
        state = model.new_state(1, room)
        model.forward(IDS[:1, : room - 2], state)
        logits = [model.forward(IDS[:1, p : p + 1], state) for p in (room - 2, room - 1)]
        want = model.forward(IDS[:1, :room])
        assert torch.equal(torch.cat(logits, 1), want[:, -2:])


def test_a_failed_call_leaves_the_state_as_it_was():
    model = build(RAW, INVARIANT)
    state = model.new_state(1, 10)
    model.forward(IDS[:1, :6], state)
    for ids in (IDS[:1, :5], IDS[:2, :2], torch.tensor([[64]]), torch.tensor([[-1]]), IDS[:1, :0]):
        with pytest.raises(ValueError, match="must|holds"):
            model.forward(ids, state)
    want = model.forward(IDS[:1, :8])
    assert torch.equal(model.forward(IDS[:1, 6:8], state), want[:, 6:])


def bytes_of(x: torch.Tensor) -> torch.Tensor:
    """So that NaN equals NaN."""
    return x.contiguous().view(torch.uint8)


def same(a: torch.Tensor, b: torch.Tensor, backend_name: str) -> bool:
    """To the byte; on sim, where BLAS sums a product's rows in an order of their own, to rounding.

    A value at a boundary may then round to the next code of a record: one byte in a hundred.
    """
    if backend_name == "cpu":
        return torch.equal(bytes_of(a), bytes_of(b))
    if a.is_floating_point():
        return torch.allclose(a, b, atol=1e-4, equal_nan=True)
    return bool((a == b).float().mean() > 0.99)


def padded_batch(model, batch: int):
    """Two calls of three sequences in a batch of `batch`, whose other rows only pad."""
    state = dirty(model.new_state(batch, ROOM))
    rows = torch.full((batch - 3, 2), 63)
    for first, lengths in ((0, [2, 1, 2]), (2, [1, 2, 0])):
        ids = torch.cat((IDS[:, first : first + 2], rows))
        logits = model.forward(ids, state, lengths + [0] * (batch - 3))
    return logits, state


@pytest.mark.parametrize("name", ["cpu", "sim"])
def test_a_batch_padded_from_3_to_8_leaves_the_same_pools(name):
    """Rows that only pad change no byte of what the three keep, scratch slots included."""
    model = build(RAW, INVARIANT if name == "cpu" else Numerics(activations=False))
    with backend.use(name):
        (few, alone), (many, padded) = (padded_batch(model, batch) for batch in (3, 8))
    for (path, a), (_, b) in zip(tensors_of(alone), tensors_of(padded), strict=True):
        assert same(a, b[:3], name), path
    assert same(few[0, 0], many[0, 0], name) and few[0, 0].isfinite().all()
