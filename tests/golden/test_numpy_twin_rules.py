"""Edges of the NumPy twin's rules: number formats, ties, visibility, candidates, the sink."""

from __future__ import annotations

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
import numpy_attention as att
import numpy_checkpoint as ckpt
import numpy_engram as engram
import numpy_formats as formats
import numpy_layers as layers

F32 = np.float32


def ints(*shape: int, seed: int = 0) -> np.ndarray:
    """Random multiples of 1/64 in [-1, 1], float32."""
    return np.random.default_rng(seed).integers(-64, 65, size=shape).astype(F32) / F32(64)


def test_e2m1_encodes_as_ml_dtypes_does():
    e2m1 = ml_dtypes.float4_e2m1fn
    v = np.concatenate([np.arange(-6, 6.01, 1 / 64), [-0.0, 0.25, 0.75, 2.5, 5.0]]).astype(F32)
    v = np.concatenate([v, np.nextafter(v, F32(9)), np.nextafter(v, F32(-9))])
    v = np.clip(v, -6, 6)
    assert np.array_equal(formats.e2m1_encode(v), v.astype(e2m1).view(np.uint8) & 15)
    codes = np.arange(16, dtype=np.uint8)
    want = codes.view(e2m1).astype(F32)
    assert formats.e2m1_decode(codes).tobytes() == want.tobytes()
    assert formats.e2m1_encode(np.array([7.0, -1e9], F32)).tolist() == [7, 15]


def test_scale_bytes_decode_as_ml_dtypes_does():
    byte = np.arange(256, dtype=np.uint8)
    want = byte.view(ml_dtypes.float8_e8m0fnu).astype(F32)
    assert np.array_equal(formats.scale_value(byte), want, equal_nan=True)


@pytest.mark.parametrize("exponent", [-30, -9, 0, 17])
def test_the_ceil_of_a_scale_is_exact_just_above_a_power_of_two(exponent):
    power = F32(2.0**exponent)
    above = np.nextafter(power, F32(np.inf))
    values = formats.scale_value(formats.ceil_power_of_two(np.array([power, above])))
    assert values.tolist() == [2.0**exponent, 2.0 ** (exponent + 1)]


@pytest.mark.parametrize("fp8_max", [448, 240, 224])
def test_fp8_rows_use_the_smallest_scale_that_does_not_clip(fp8_max):
    x = ints(5, 96) * F32(37.5)
    codes, byte = formats.quantize_fp8(x, 32, fp8_max)
    scale = formats.scale_value(byte)
    amax = np.abs(x.reshape(5, 3, 32)).max(-1)
    assert (amax <= scale * fp8_max).all() and (amax > scale / 2 * fp8_max).all()
    assert np.abs(codes.astype(F32)).max() <= fp8_max
    error = np.abs(formats.fake_fp8(x, 32, fp8_max) - x).reshape(5, 3, 32)
    assert (error <= np.maximum(np.abs(x).reshape(5, 3, 32) / 16, scale[..., None] / 512)).all()


@pytest.mark.parametrize("fake", [formats.fake_fp8, formats.fake_fp4_ue8m0, formats.fake_fp4_e4m3])
def test_quantisers_keep_zero_rows_and_their_own_output_and_refuse_the_rest(fake):
    zeros = np.array([[0.0, -0.0] * 16], F32)
    assert fake(zeros).tobytes() == zeros.tobytes()
    assert fake(np.zeros((0, 32), F32)).shape == (0, 32)
    once = fake(ints(3, 64))
    assert np.array_equal(fake(once), once)
    with pytest.raises(ValueError, match="multiple"):
        fake(np.zeros((1, 33), F32))
    with pytest.raises(ValueError, match="NaN"):
        fake(np.full((1, 32), np.nan, F32))


def test_the_e4m3_scale_saturates():
    codes, scale = formats.quantize_fp4_e4m3(np.full(16, 1e5, F32))
    assert (float(scale[0]), codes.tolist()) == (448, [7] * 16)
    assert float(formats.quantize_fp4_e4m3(np.full(16, 1e5, F32), 16, 240)[1][0]) == 240


def test_tiles_cover_odd_sizes_and_a_wrong_grid_is_refused():
    codes = ints(33, 70).astype(formats.E4M3)
    scale = np.arange(6).reshape(2, 3).astype(F32)
    values = formats.dequantize_tiles(codes, scale, (32, 32))
    assert values[32, 69] == codes[32, 69].astype(F32) * 5
    assert values[31, 31] == codes[31, 31].astype(F32) * 0
    with pytest.raises(ValueError, match="want"):
        formats.dequantize_tiles(codes, scale, (128, 128))
    with pytest.raises(ValueError, match="blocks of"):
        formats.dequantize_fp4(np.zeros((2, 32), np.int8), np.ones((2, 1), F32))


def test_the_low_nibble_is_the_even_column():
    packed = np.array([[0x10, 0x32, -1]], np.int8)
    assert formats.unpack_nibbles(packed).tolist() == [[0, 1, 2, 3, 15, 15]]


def test_softplus_and_sigmoid_at_the_ends():
    x = np.array([-200, -100, -20, 0, 20, 100, 200], F32)
    with np.errstate(all="raise", under="ignore"):
        soft, sig = ckpt.softplus(x), ckpt.sigmoid(x)
    assert soft.dtype == F32 and np.allclose(soft[3:], [np.log(2), 20, 100, 200], rtol=1e-6)
    assert soft[2] == F32(np.exp(-20.0)) and soft[1] > 0
    assert sig[3] == 0.5 and sig[6] == 1 and 0 < sig[1] < 1e-40


def test_top_k_gives_ties_to_the_lowest_index():
    assert ckpt.top_k(np.array([1, 0, 0, 0, 0, 0, 0, 0, 2]), 4).tolist() == [8, 0, 1, 2]
    assert ckpt.top_k(np.array([-0.0, 0.0, 0.0]), 2).tolist() == [0, 1]


def test_window_and_entry_visibility_at_their_boundaries():
    assert [att.window_start(p, 128) for p in (0, 126, 127, 128, 300)] == [0, 0, 0, 1, 173]
    assert [att.visible_entries(p, 2) for p in range(6)] == [0, 1, 1, 2, 2, 3]
    assert [att.visible_entries(p, 1) for p in range(3)] == [1, 2, 3]
    assert [att.visible_entries(p, 4) for p in (0, 2, 3, 6, 7)] == [0, 0, 1, 1, 2]


def test_candidate_blocks_force_the_newest_and_break_ties_low():
    scores = np.array([5, 0, 1, 1, 1, 0, -9], F32)  # blocks of 2: 5, 1, 1, newest
    assert att.candidate_blocks(scores, 2, 3).tolist() == [0, 1, 3]
    assert att.candidate_blocks(scores, 2, 1).tolist() == [3]
    assert att.candidate_blocks(scores, 2, 99).tolist() == [0, 1, 2, 3]
    assert att.candidate_blocks(scores[:0], 2, 3).tolist() == []


def test_selection_stays_inside_the_allowed_blocks_even_below_k():
    scores = np.array([9, 8, 7, 6, 5], F32)
    assert att.select_entries(scores, 2, None, 2).tolist() == [0, 1]
    assert att.select_entries(scores, 4, np.array([1]), 2).tolist() == [2, 3]
    assert att.select_entries(scores, 1, np.array([0, 2]), 2).tolist() == [0]
    assert att.select_entries(np.zeros(5, F32), 3, None, 2).tolist() == [0, 1, 2]
    assert att.select_entries(scores[:0], 3, None, 2).tolist() == []


def test_the_sink_joins_the_denominator_only():
    q, keys, sink = ints(2, 8), ints(3, 8, seed=1), np.array([0.5, -2.0])
    e = np.exp(q @ keys.T * 8**-0.5)
    want = (e @ keys) / (e.sum(1) + np.exp(sink))[:, None]
    assert np.allclose(att.attend(q, keys, sink), want, atol=1e-6)
    assert np.allclose(att.attend(q, keys, np.full(2, 1e4)), 0), "a huge sink takes everything"


def test_hyper_expand_contracts_the_first_index_of_comb():
    streams, y, post, comb = ints(1, 3, 4), ints(1, 4, seed=1), ints(1, 3), ints(1, 3, 3, seed=2)
    want = post[0][:, None] * y[0] + comb[0].T @ streams[0]
    assert np.allclose(layers.expand(y, streams, post, comb)[0], want, atol=1e-6)


def test_text_is_normalised_for_token_compression():
    cases = {" ": " ", "\n\t ": " ", "  Ab ": "ab", "É": "e", "ﬁ": "fi", "": "", "\x1c": "\x1c"}
    assert {text: engram.normalize(text) for text in cases} == cases
    assert engram.normalize("ΑΣ") == "ας".replace("ς", "σ"), "no final-sigma rule: per character"


def test_small_primes_are_never_used_twice():
    primes = engram.bucket_primes(2, 1, 3, 2)
    assert primes == [[[2, 3, 5]], [[7, 11, 13]]]
