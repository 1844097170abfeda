"""Files of a checkpoint that cannot be read: one line that names the file, not a traceback."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import dslearn
from dslearn.checkpoint.reader import Checkpoint
from dslearn.cli import main
from dslearn.config import Config
from dslearn.errors import CheckpointError

TINY = Path(dslearn.__file__).parent / "data" / "tiny"
SHARD = "model-00001-of-00001.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture
def copy(tmp_path):
    return Path(shutil.copytree(TINY, tmp_path / "copy"))


def refuse(monkeypatch: pytest.MonkeyPatch, refused: Path) -> None:
    """Permission denied for this file: tests may run as root, whom no mode keeps out."""
    for name in ("open", "stat", "read_text", "read_bytes"):
        real = getattr(Path, name)

        def call(self, *args, real=real, **kwargs):
            if self == refused:
                raise PermissionError(13, "Permission denied", str(self))
            return real(self, *args, **kwargs)

        monkeypatch.setattr(Path, name, call)


def one_line(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1, err
    return err


@pytest.mark.parametrize("name", ["", "config.json", INDEX, SHARD])
def test_what_may_not_be_read_is_named(name, copy, monkeypatch, capsys):
    refuse(monkeypatch, copy / name)
    said = f"{copy / name}: Permission denied; make it readable, or give another checkpoint"
    for arguments in (["inspect", str(copy)], ["generate", "x", "--model", str(copy)]):
        assert said in one_line(capsys, *arguments)
    with pytest.raises(CheckpointError, match="Permission denied"):
        Checkpoint(copy)


def test_a_plan_and_a_lint_name_it_too(copy, monkeypatch, capsys):
    refuse(monkeypatch, copy / "config.json")
    plan = ["generate", "x", "--plan", "--max-num-seqs", "2", "--model", str(copy)]
    for arguments in (plan, ["lint", "model", str(copy)]):
        assert "config.json: Permission denied; make it" in one_line(capsys, *arguments)


def test_a_directory_in_a_files_place_is_named(copy, capsys):
    (copy / "config.json").unlink()
    (copy / "config.json").mkdir()
    assert "config.json: Is a directory; make it readable" in one_line(capsys, "inspect", str(copy))
    with pytest.raises(CheckpointError, match="Is a directory"):
        Config.from_file(copy)


def test_a_shard_that_closes_after_its_header_was_read(copy, monkeypatch):
    opened = Checkpoint(copy)
    refuse(monkeypatch, copy / SHARD)
    with pytest.raises(CheckpointError, match=f"{SHARD}: Permission denied"):
        opened.tensor(opened.names[0])


def test_a_tokenizer_that_cannot_be_read_or_is_none(copy, capsys):
    file = copy / "tokenizer.json"
    file.write_text("{}")
    line = ["generate", "x", "--model", str(copy)]
    assert f"{file}: not a tokenizer (" in one_line(capsys, *line)
    file.unlink()
    file.mkdir()
    assert f"{file}: Is a directory; make it readable" in one_line(capsys, *line)


@pytest.mark.parametrize("command", [["inspect"], ["lint", "model"], ["generate", "x", "--model"]])
def test_a_file_and_nothing_are_told_apart(command, copy, capsys):
    file = copy / "config.json"
    said = one_line(capsys, *command, str(file))
    assert f"{file} is a file; give the directory that holds it" in said
    said = one_line(capsys, *command, str(copy / "nowhere"))
    assert "no such directory; give a checkpoint directory, or 'tiny', which ships" in said
    said = one_line(capsys, *command, str(file / "below"))
    assert "no such directory" in said


def test_only_commands_know_tiny(tmp_path):
    with pytest.raises(CheckpointError, match="give a checkpoint directory$"):
        Checkpoint(tmp_path / "nowhere")
