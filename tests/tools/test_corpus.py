"""The training text: the split rule, the committed list, and what verification says."""

from __future__ import annotations

import hashlib
import importlib
import platform
import sys
from pathlib import Path

import pytest

from dslearn.errors import UsageError

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
corpus = importlib.import_module("corpus")

PINNED = corpus.LIST.read_text().splitlines()[0].split()[2].rstrip(",")


def _library(root: Path, count: int = 60) -> Path:
    for index in range(count):
        path = root / f"pkg{index % 3}" / f"mod_{index}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"x = {index}\n".encode())
    return root


def _put(root: Path, name: str, data: bytes) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(data)


def test_list_holds_each_file_once_in_order():
    paths = [entry.path for entry in corpus.load_list()]
    assert paths == sorted(set(paths))
    assert len(paths) == 1663


def test_listed_split_is_sha1_of_the_path_modulo_20():
    for entry in corpus.load_list():
        digest = hashlib.sha1(entry.path.encode("utf-8")).digest()
        held_out = int.from_bytes(digest, "big") % 20 == 0
        assert entry.split == ("held-out" if held_out else "train"), entry.path


def test_sizes_of_the_splits():
    sizes = dict.fromkeys(corpus.SPLITS, 0)
    for entry in corpus.load_list():
        sizes[entry.split] += entry.size
    assert sizes == {"train": 27_487_038, "held-out": 1_759_555}


def test_list_leaves_out_what_depends_on_the_machine():
    names = [entry.path for entry in corpus.load_list()]
    assert not [n for n in names if "sysconfigdata" in n or "site-packages" in n or n[0] == "/"]


@pytest.mark.skipif(platform.python_version() != PINNED, reason=f"the list is of CPython {PINNED}")
def test_list_equals_what_is_found_here():
    if not (corpus.stdlib() / "test/test_typing.py").is_file():
        pytest.skip("this Python was installed without its tests")
    assert corpus.files(corpus.stdlib()) == corpus.load_list()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("site-packages/a.py", b"x\n"),
        ("pkg/__pycache__/a.py", b"x\n"),
        ("lib2to3/tests/data/a.py", b"x\n"),
        ("_sysconfigdata__linux_x86_64-linux-gnu.py", b"x\n"),
        ("encodings/cp037.py", b"x\n"),
        ("latin.py", b"# -*- coding: latin-1 -*-\n"),
        ("mark.py", b"\xef\xbb\xbfx = 1\n"),
        ("broken.py", b"x = '\xff'\n"),
        ("nul.py", b"x = 1\0\n"),
        ("empty.py", b""),
        ("text.txt", b"x\n"),
    ],
)
def test_left_out(tmp_path, name, data):
    _put(tmp_path, name, data)
    _put(tmp_path, "kept.py", "é = 1\n".encode())
    assert [entry.path for entry in corpus.files(tmp_path)] == ["kept.py"]


def test_list_file_round_trip(tmp_path):
    found = corpus.files(_library(tmp_path / "lib"))
    corpus.save_list(found, tmp_path / "list.txt", source="made here")
    assert corpus.load_list(tmp_path / "list.txt") == found
    assert (tmp_path / "list.txt").read_text().startswith("# made here\n")


def test_read_split_gives_each_file_once(tmp_path):
    root, listing = _library(tmp_path / "lib"), tmp_path / "list.txt"
    corpus.save_list(corpus.files(root), listing)
    parts = {split: corpus.read_split(split, root, listing) for split in corpus.SPLITS}
    assert len(parts["train"]) + len(parts["held-out"]) == 60
    assert parts["held-out"], "60 names, none held out: the test needs other names"
    for split, pairs in parts.items():
        for path, data in pairs:
            assert corpus.split_of(path) == split
            assert data == (root / path).read_bytes()


def test_another_library_is_refused_by_name(tmp_path):
    root, listing = _library(tmp_path / "lib"), tmp_path / "list.txt"
    corpus.save_list(corpus.files(root), listing)
    (root / "pkg0/mod_0.py").unlink()
    (root / "pkg1/mod_1.py").write_bytes(b"x = 2\n")  # same size
    _put(root, "extra.py", b"x\n")  # an extra file is no harm
    with pytest.raises(UsageError) as caught:
        corpus.read_split("train", root, listing)
    for part in ("1 missing (pkg0/mod_0.py)", "1 changed (pkg1/mod_1.py)", str(root), "pyenv"):
        assert part in str(caught.value)


def test_long_differences_are_shortened(tmp_path):
    expected = corpus.files(_library(tmp_path / "lib"))
    with pytest.raises(UsageError, match=r"60 missing \([^)]*, \.\.\.\), 0 changed\."):
        corpus.verify(tmp_path, expected)


def test_unknown_split(tmp_path):
    with pytest.raises(UsageError, match="split 'test': allowed are train and held-out"):
        corpus.read_split("test", tmp_path)


def test_tool_prints_one_line_and_gives_2(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["corpus.py", "--root", str(tmp_path)])
    assert corpus.exit_code(corpus.main) == 2
    streams = capsys.readouterr()
    assert streams.err.startswith("error: ") and streams.err.count("\n") == 1
