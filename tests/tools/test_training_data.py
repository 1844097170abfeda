"""What a trainer reads and how it is judged: batches, the schedule, held-out likelihood."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from training import evaluate, plan
from training.data import Chunks


@pytest.mark.parametrize("size, length, epoch", [(103, 8, 0), (103, 8, 1), (97, 16, 5)])
def test_an_epoch_uses_every_token_once(size, length, epoch):
    stream = np.arange(size, dtype=np.uint16)
    per_epoch = (size - 1 - length) // length
    rows = Chunks(stream, seed=1).batch(epoch * per_epoch * length, length, per_epoch)
    assert rows.shape == (per_epoch, length + 1) and rows.dtype == torch.int64
    assert (rows[:, 1:] - rows[:, :-1] == 1).all(), "a chunk is a stretch of the stream"
    used = rows[:, :-1].flatten().sort().values
    shift = epoch * 97 % length
    assert used.tolist() == list(range(shift, shift + per_epoch * length))


def test_epochs_come_in_another_order_at_other_borders():
    chunks = Chunks(np.arange(200, dtype=np.uint16), seed=0)
    per_epoch = (200 - 1 - 8) // 8
    first, second = (chunks.batch(e * per_epoch * 8, 8, per_epoch) for e in (0, 1))
    assert not torch.equal(first, second)
    assert set(first[:, 0].tolist()).isdisjoint(second[:, 0].tolist())


def test_a_run_resumes_where_it_stopped():
    stream = np.arange(500, dtype=np.uint16)
    whole = Chunks(stream, seed=3).batch(0, 8, 90)  # over the end of the first epoch
    again = torch.cat([Chunks(stream, seed=3).batch(seen * 8, 8, 15) for seen in range(0, 90, 15)])
    assert torch.equal(whole, again)
    assert not torch.equal(whole, Chunks(stream, seed=4).batch(0, 8, 90))


def test_ranks_share_a_batch_without_overlap():
    batch = Chunks(np.arange(1000, dtype=np.uint16), seed=0).batch(160, 16, 10)
    shares = [batch[rank::3] for rank in range(3)]
    starts = [set(share[:, 0].tolist()) for share in shares]
    assert sum(map(len, starts)) == len(set.union(*starts)) == 10


# --- schedule --------------------------------------------------------------------------------

FRACTIONS = [i / 1000 for i in range(1001)]


def test_phases_change_once_and_in_one_direction():
    phases = [plan.phase(f) for f in FRACTIONS]
    assert [p.dense for p in phases] == sorted((p.dense for p in phases), reverse=True)
    assert [p.quantised for p in phases] == sorted(p.quantised for p in phases)
    assert [p.length for p in phases] == sorted(p.length for p in phases)
    assert phases[0].dense and not phases[0].quantised and phases[-1].quantised
    assert plan.phase(plan.DENSE_UNTIL).dense is False
    assert plan.phase(plan.QUANTISED_FROM).quantised is True


def test_the_rate_warms_up_holds_and_falls():
    rates = np.array([plan.phase(f).rate for f in FRACTIONS])
    assert ((rates > 0) & (rates <= 1)).all() and rates[0] < 0.1 and rates[-1] == 0.02
    peak = rates.argmax()
    assert (np.diff(rates[: peak + 1]) >= 0).all() and (np.diff(rates[peak:]) <= 0).all()
    assert plan.phase(plan.DECAY_FROM + 1e-9).rate == pytest.approx(1)


@pytest.mark.parametrize("size, context", [(2, 4), (5, 4), (6, 4), (40, 7), (41, 16), (17, 16)])
def test_windows_score_every_prediction_once(size, context):
    scored = []
    for piece, skip in evaluate.windows(torch.arange(size), context):
        assert len(piece) <= context + 1
        scored += piece[1 + skip :].tolist()
        looks_back = int(piece[1 + skip]) - int(piece[0])
        assert int(piece[0]) == 0 or looks_back >= context // 2
    assert scored == list(range(1, size))


def test_nats_do_not_depend_on_how_files_are_batched(monkeypatch):
    table = torch.randn(9, 9, generator=torch.Generator().manual_seed(0)) * 3
    files = [
        torch.tensor([0, 3, 4, 1]),
        torch.tensor([0, 8, 8, 2, 5, 6, 7, 1]),
        torch.tensor([0, 1]),
    ]
    logp = table.log_softmax(-1)
    expected = -sum(float(logp[a, b]) for f in files for a, b in zip(f, f[1:], strict=False))
    bigram = table.__getitem__  # a model whose logits depend on one token
    for context, batch in ((4, 4), (4, 100), (16, 1)):
        monkeypatch.setattr(evaluate, "BATCH_TOKENS", batch)
        assert evaluate.nats(bigram, files, context) == pytest.approx(expected, abs=1e-4)
