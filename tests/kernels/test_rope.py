"""rope against the model's rotate: bits, inverse, positions, heads, two cores."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dslearn import backend
from dslearn.kernels.rope import rope
from dslearn.model.rope import RopeTable, rotate
from dslearn.ops.rope import reference
from dslearn.ops.rope import rope as op
from tests.support.kernels import bits, dma_bytes, matrix, recorded

SIZES = [(1, 1, 16), (3, 5, 48), (6, 64, 64), (3, 70, 32), (7, 128, 16), (130, 1, 16)]


def turns(tokens, rotated=16, first=0):
    table = RopeTable(rotated, 10000.0, None)
    table.reserve(first + 37 * tokens + 1)
    return table.at(first + 37 * torch.arange(tokens))


def heads(seed, tokens, number, dim, dtype=torch.float32):
    return matrix(seed, tokens * number, dim, dtype).view(tokens, number, dim)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_bits_are_those_of_the_model_on_one_core_and_on_two(size, inverse, dtype):
    x, (cos, sin) = heads(1, *size, dtype), turns(size[0])
    expected = rotate(x.float(), cos[:, None], sin[:, None], inverse=inverse).to(dtype)
    assert torch.equal(bits(reference(x, cos, sin, inverse)), bits(expected))
    for cores in (1, 2):
        y = rope[cores](x=x, cos=cos, sin=sin, inverse=inverse)
        assert y.dtype == dtype and torch.equal(bits(y), bits(expected))
    assert size[0] == 1 or not torch.equal(y, x)


def test_complex_numbers_say_the_same():
    x, (cos, sin) = heads(2, 4, 3, 24), turns(4)
    z = x[..., 8:].double().numpy().view(complex)
    angle = cos[:, ::2].double() + 1j * sin[:, 1::2].double()
    turned = (z * angle.numpy()[:, None]).view(float)
    y = rope(x=x, cos=cos, sin=sin)
    assert np.abs(y[..., 8:].numpy() - turned).max() < 1e-6
    assert torch.equal(y[..., :8], x[..., :8])


def test_the_inverse_turns_back():
    x, (cos, sin) = heads(3, 5, 4, 32), turns(5, first=60000)
    back = rope(x=rope(x=x, cos=cos, sin=sin), cos=cos, sin=sin, inverse=True)
    torch.testing.assert_close(back, x, rtol=0, atol=2e-6)


def test_position_0_changes_nothing():
    x, (cos, sin) = heads(4, 1, 3, 16), turns(1)
    assert torch.equal(rope(x=x, cos=cos, sin=sin), x)


def test_scores_depend_on_the_distance_only():
    q, k = heads(5, 1, 1, 16).expand(2, 1, 16), heads(6, 1, 1, 16).expand(2, 1, 16)
    table = RopeTable(16, 10000.0, None)
    table.reserve(1001)
    at = [table.at(torch.tensor(p)) for p in ((5, 905), (2, 902))]
    a, b = (rope(x=x.clone(), cos=c, sin=s) for x, (c, s) in zip((q, k), at, strict=True))
    near, far = (a * b).sum(-1).flatten()
    assert abs(near - far) < 1e-3 * abs(near) + 1e-4


def test_a_token_does_not_depend_on_its_neighbours():
    x, (cos, sin) = heads(7, 9, 20, 32), turns(9)
    whole = rope(x=x, cos=cos, sin=sin)
    for t in (0, 3, 8):
        alone = rope(x=x[t : t + 1].clone(), cos=cos[t : t + 1], sin=sin[t : t + 1])
        assert torch.equal(alone[0], whole[t])


def test_specials_stay_in_their_pair():
    x, (cos, sin) = heads(8, 2, 1, 16), turns(2)
    x[1, 0, 4] = float("nan")
    y = rope(x=x, cos=cos, sin=sin)
    assert y[1, 0].isnan().nonzero().flatten().tolist() == [4, 5] and y[0].isfinite().all()


def test_values_are_read_and_written_once():
    x, (cos, sin) = heads(9, 6, 64, 64, torch.bfloat16), turns(6, 64)
    (core,) = recorded(lambda: rope(x=x, cos=cos, sin=sin))
    read, wrote = dma_bytes(core)
    assert wrote == x.numel() * 2 and read == x.numel() * 2 + 2 * 64 * 6 * 64 * 4


def test_the_operation_and_what_it_refuses():
    x, (cos, sin) = heads(10, 2, 3, 16), turns(2)
    with backend.use("sim"):
        assert torch.equal(op(x, cos, sin, True), reference(x, cos, sin, True))
    with pytest.raises(AssertionError, match="even, at most D"):
        rope(x=x, cos=torch.zeros(2, 18), sin=torch.zeros(2, 18))
