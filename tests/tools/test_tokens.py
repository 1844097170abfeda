"""Encoded splits: layout of the arrays, the cache, and the unit of the loss."""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
corpus = importlib.import_module("corpus")
tokens = importlib.import_module("tokens")


@pytest.fixture
def library(tmp_path):
    root = tmp_path / "lib"
    root.mkdir()
    for index in range(40):
        (root / f"name{index}.py").write_bytes(f"é{index} = 'x' * {index}\n".encode() * (index + 1))
    corpus.save_list(corpus.files(root), tmp_path / "list.txt")
    return root, tmp_path / "list.txt"


@pytest.mark.parametrize("split", corpus.SPLITS)
def test_each_file_is_begin_text_end(library, tmp_path, split):
    root, listing = library
    found = tokens.load(split, tmp_path / "cache", root=root, listing=listing)
    pairs = corpus.read_split(split, root, listing)
    tokenizer = Tokenizer.from_file(str(tokens.TOKENIZER))
    assert found.ids.dtype == np.uint16
    assert len(found) == len(pairs) > 0
    assert found.bytes == sum(len(data) for _, data in pairs)
    assert found.starts[0] == 0 and found.starts[-1] == len(found.ids)
    for index, (_, data) in enumerate(pairs):
        ids = found.file(index).tolist()
        assert (ids[0], ids[-1]) == (0, 1)
        assert tokenizer.decode(ids[1:-1], skip_special_tokens=False).encode() == data
        assert found.sizes[index] == len(data)


def test_second_load_reads_the_cache_only(library, tmp_path):
    root, listing = library
    first = tokens.load("train", tmp_path / "cache", root=root, listing=listing)
    again = tokens.load("train", tmp_path / "cache", root=tmp_path / "gone", listing=listing)
    np.testing.assert_array_equal(first.ids, again.ids)
    np.testing.assert_array_equal(first.starts, again.starts)
    np.testing.assert_array_equal(first.sizes, again.sizes)
    assert not list((tmp_path / "cache").glob("*.tmp*"))


def test_another_list_is_encoded_anew(library, tmp_path):
    root, listing = library
    tokens.load("train", tmp_path / "cache", root=root, listing=listing)
    (root / "more.py").write_bytes(b"y = 1\n")
    corpus.save_list(corpus.files(root), listing)
    tokens.load("train", tmp_path / "cache", root=root, listing=listing)
    assert len(list((tmp_path / "cache").glob("train-*.ids.npy"))) == 2


def test_no_texts():
    empty = tokens.encode([], Tokenizer.from_file(str(tokens.TOKENIZER)))
    assert (len(empty), empty.bytes, len(empty.ids), empty.starts.tolist()) == (0, 0, 0, [0])


def test_uniform_bytes_cost_eight_bits():
    assert tokens.bits_per_byte(100 * math.log(256), 100) == pytest.approx(8.0)
