"""compress_pool against loops in double precision, the model's compressor and its twin."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dslearn import backend
from dslearn.kernels.compress_pool import compress_pool
from dslearn.model.caches import OpenGroup, Stretch
from dslearn.model.compressor import align_pairs
from dslearn.ops.compress_pool import compress_pool as op
from dslearn.ops.compress_pool import reference
from tests.support.kernels import bits, matrix, recorded

EPS = 1e-20


class Sequences:
    """Tokens of some sequences that arrive in calls; what waits is kept."""

    def __init__(self, batch, dim, cores=1, round_latent=False):
        self.u = torch.zeros(batch, dim)
        self.g = torch.full((batch, dim), -math.inf)
        self.start = torch.zeros(batch, dtype=torch.int32)
        self.weight, self.cores = matrix(9, 1, dim) / 4 + 1, cores
        self.round_latent = round_latent

    def call(self, u, g, lengths):
        """Latents [B, G, D] of one call."""
        lengths = torch.tensor(lengths, dtype=torch.int32)
        latent = compress_pool[self.cores](
            u=u, weight=self.weight, eps=EPS, round_latent=self.round_latent, g=g,
            start=self.start[:, None].clone(), lengths=lengths[:, None], open_u=self.u,
            open_g=self.g,
        )  # fmt: skip
        self.start += lengths
        return latent


def tokens(seed, batch, count, dim):
    return tuple(matrix(seed + i, batch * count, dim).view(batch, count, dim) for i in range(2))


def by_hand(u, g, weight):
    """Latents of one whole sequence [T, D] in float64."""
    found = []
    for j in range(len(u) // 2):
        e = np.exp(g[2 * j : 2 * j + 2] - g[2 * j : 2 * j + 2].max(0))
        x = (e / e.sum(0) * u[2 * j : 2 * j + 2]).sum(0)
        found.append(x / np.sqrt((x**2).mean() + EPS) * weight)
    return np.array(found).reshape(-1, u.shape[1])


@pytest.mark.parametrize(
    "cuts", [[9], [1] * 9, [2, 7], [3, 1, 1, 4], [1, 8], [0, 5, 0, 4], [4, 5]], ids=str
)
@pytest.mark.parametrize("cores", [1, 2])
def test_however_a_sequence_is_cut_its_pairs_are_the_same(cuts, cores):
    (u, g), sequence = tokens(1, 1, 9, 24), Sequences(1, 24, cores)
    exact = by_hand(u[0].double().numpy(), g[0].double().numpy(), sequence.weight[0].numpy())
    found, at = [], 0
    for count in cuts:
        width = max(count, 1)  # a call has a token at least; it may be padding
        start = int(sequence.start[0])
        latent = sequence.call(
            u[:, at : at + width].clone(), g[:, at : at + width].clone(), [count]
        )
        at += count
        closed = at // 2 - start // 2
        assert not latent[0, closed:].any(), "what is not closed is empty"
        found.append(latent[0, :closed])
    assert np.abs(torch.cat(found).numpy() - exact).max() < 2e-6
    assert torch.equal(sequence.u, u[:, 8]) and torch.equal(sequence.g, g[:, 8])


@pytest.mark.parametrize("round_latent", [False, True])
@pytest.mark.parametrize("size", [(1, 1, 8), (3, 6, 40), (8, 6, 16), (2, 126, 8), (5, 1, 512)])
def test_equals_its_twin(size, round_latent):
    batch, count, dim = size
    (u, g), (open_u, open_g) = tokens(2, *size), tokens(4, batch, 1, dim)
    rng = np.random.default_rng(6)
    start = torch.from_numpy(rng.integers(0, 9, batch)).int()
    lengths = torch.from_numpy(rng.integers(0, count + 1, batch)).int()
    weight, states = matrix(7, 1, dim)[0] + 2, []
    for run in ("twin", "kernel"):
        state = [open_u[:, 0].clone(), open_g[:, 0].clone()]
        if run == "twin":
            expected = reference(u, weight, EPS, round_latent, g, start, lengths, *state)
        else:
            columns = start[:, None], lengths[:, None]
            y = compress_pool[2](u, weight[None], EPS, round_latent, g, *columns, *state)
        states.append(state)
    assert y.dtype == expected.dtype == (torch.bfloat16 if round_latent else torch.float32)
    if round_latent:
        assert (y == expected).float().mean() > 0.99
    else:
        torch.testing.assert_close(y, expected, rtol=0, atol=3e-6)
    for a, b in zip(*states, strict=True):
        assert torch.equal(bits(a), bits(b))


@pytest.mark.parametrize("start", [0, 1, 2, 3])
@pytest.mark.parametrize("length", [0, 1, 2, 3, 4])
def test_the_model_closes_groups_in_the_same_way(start, length):
    u, g = tokens(8, 1, 4, 16)
    group, sequence = OpenGroup(1, 16), Sequences(1, 16)
    if start % 2:
        group.u, group.g = matrix(10, 1, 16), matrix(11, 1, 16)
    sequence.u, sequence.g, sequence.start[0] = group.u.clone(), group.g.clone(), start
    odd = torch.tensor([start % 2 == 1])
    pairs = align_pairs(group.u, u, odd), align_pairs(group.g, g, odd)
    pooled = (pairs[1].softmax(2) * pairs[0]).sum(2)
    expected = torch.nn.functional.rms_norm(pooled, (16,), sequence.weight[0], EPS)
    closed = (start + length) // 2 - start // 2
    latent = sequence.call(u, g, [length])
    torch.testing.assert_close(latent[:, :closed], expected[:, :closed], rtol=0, atol=3e-6)
    assert not latent[:, closed:].any()
    group.update(u, g, Stretch(torch.tensor([start]), torch.tensor([length])))
    assert torch.equal(sequence.u, group.u) and torch.equal(sequence.g, group.g)


def test_ragged_sequences_do_not_see_each_other():
    u, g = tokens(12, 3, 5, 16)
    together, lengths = Sequences(3, 16), [5, 2, 3]
    latent = together.call(u, g, lengths)
    for b, length in enumerate(lengths):
        alone = Sequences(1, 16)
        one = alone.call(u[b : b + 1].clone(), g[b : b + 1].clone(), [length])
        assert torch.equal(one[0], latent[b]) and torch.equal(alone.u[0], together.u[b])


def test_padding_may_hold_anything():
    u, g = tokens(13, 2, 4, 16)
    clean, dirty = Sequences(2, 16), Sequences(2, 16)
    expected = clean.call(u, g, [3, 1])
    for x in (u, g):
        x[0, 3], x[1, 1:] = math.nan, math.nan
    latent = dirty.call(u, g, [3, 1])
    assert torch.equal(latent, expected) and latent[0, 0].abs().max() > 0
    assert torch.equal(dirty.u, clean.u) and torch.equal(dirty.g, clean.g)


def test_large_scores_choose_a_token():
    u, g = tokens(14, 1, 2, 8)
    g[0, 0], g[0, 1] = 1e30, -1e30
    sequence = Sequences(1, 8)
    latent = sequence.call(u, g, [2])[0, 0]
    expected = reference(u[:, :1], sequence.weight[0], EPS, False)[0, 0]
    torch.testing.assert_close(latent, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("batch", [1, 2, 3, 8, 33])
def test_two_cores_give_the_bytes_of_one(batch):
    u, g = tokens(15, batch, 6, 16)
    runs = [Sequences(batch, 16, cores) for cores in (1, 2)]
    one, two = (run.call(u, g, [5] * batch) for run in runs)
    assert torch.equal(bits(one), bits(two)) and torch.equal(runs[0].u, runs[1].u)
    assert torch.equal(runs[0].g, runs[1].g)


@pytest.mark.parametrize("size", [(1, 1, 8), (2, 3, 40), (3, 100, 16)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_at_ratio_1_every_token_is_a_group(size, dtype):
    u, weight = tokens(16, *size)[0].to(dtype), matrix(17, 1, size[2]) + 2
    for round_latent in (False, True):
        one, two = (compress_pool[n](u, weight, EPS, round_latent) for n in (1, 2))
        expected = reference(u, weight[0], EPS, round_latent)
        torch.testing.assert_close(one, expected, rtol=2.0**-7 if round_latent else 1e-6, atol=1e-6)
        assert torch.equal(one, two) and one.shape == u.shape and one.dtype == expected.dtype


def test_one_program_serves_both_parities():
    u, g = tokens(18, 1, 3, 8)
    runs = []
    for start in (0, 1):
        sequence = Sequences(1, 8)
        sequence.start[0] = start
        (core,) = recorded(lambda s=sequence: s.call(u, g, [3]))
        runs.append([(one.name, one.engine) for one in core])
    assert runs[0] == runs[1]


def test_the_operation_and_what_it_refuses():
    u, g = tokens(19, 2, 3, 16)
    start, lengths, weight = torch.tensor([4, 7]), torch.tensor([3, 2]), torch.ones(16)
    states = [[torch.zeros(2, 16), torch.zeros(2, 16)] for _ in range(2)]
    expected = reference(u, weight, EPS, False, g, start, lengths, *states[0])
    with backend.use("sim"):
        y = op(u, weight, EPS, False, g, start, lengths, *states[1])
    torch.testing.assert_close(y, expected, rtol=0, atol=2e-6)
    assert torch.equal(states[0][0], states[1][0]) and states[0][0].any()
    long = tokens(20, 1, 128, 8)
    with pytest.raises(AssertionError, match="at most 126 tokens"):
        Sequences(1, 8).call(*long, [128])
