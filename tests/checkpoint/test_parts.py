"""Draft and vision tensors, and the router's image bias: whole or not at all."""

from __future__ import annotations

import pytest
import torch

from dslearn.checkpoint.reader import Checkpoint
from dslearn.checkpoint.storage import quantise
from dslearn.config import Config
from dslearn.errors import CheckpointError
from tests.support.files import save_single
from tests.support.random_model import random_dense, tiny_random_config


def expect_refusal(directory, match):
    with pytest.raises(CheckpointError, match=match) as caught:
        Checkpoint(directory)
    return str(caught.value)


def without_image_bias(tensors):
    for name in [n for n in tensors if n.endswith("bias_vl")]:
        del tensors[name]


VISION = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "patch_size": 4,
    "downsample_ratio": 3,
}


def test_a_text_model_may_lack_the_image_bias_everywhere(damaged):
    checkpoint = Checkpoint(damaged(without_image_bias))
    assert not any(name.endswith("bias_vl") for name in checkpoint.names)


def test_but_not_in_some_layers_only(damaged):
    text = expect_refusal(
        damaged(lambda t: t.pop("layers.3.ffn.gate.bias_vl")), "1 tensors missing"
    )
    assert "layers.3.ffn.gate.bias_vl" in text


def test_and_not_when_the_config_has_a_vision_tower(damaged):
    text = expect_refusal(damaged(without_image_bias, vision_config=VISION), "8 tensors missing")
    assert all(f"layers.{i}.ffn.gate.bias_vl" in text for i in range(8))


@pytest.mark.parametrize("part", ["draft", "vision"])
def test_a_part_may_be_absent_whole_or_present_whole(tmp_path, part):
    extra = {"num_nextn_predict_layers": 2} if part == "draft" else {"vision_config": VISION}
    raw = tiny_random_config(**extra)
    cfg = Config.from_dict(raw)
    whole = quantise(cfg, random_dense(cfg))
    checkpoint = Checkpoint(save_single(tmp_path / "whole", raw, whole))
    assert checkpoint.parts == ("target", part)
    number, size = checkpoint.count("part")[part]
    names = [n for n in whole if n.startswith(("mtp.", "vision.", "aligner.", "image_"))]
    assert number == len(names)
    assert size == sum(whole[n].nbytes for n in names)

    target = {name: t for name, t in whole.items() if name not in names}
    assert Checkpoint(save_single(tmp_path / "absent", raw, target)).parts == ("target",)

    some = {**target, names[0]: whole[names[0]]}
    expect_refusal(save_single(tmp_path / "some", raw, some), f"{len(names) - 1} tensors missing")

    bad = {**whole, names[0]: torch.zeros(5, 7)}
    text = expect_refusal(
        save_single(tmp_path / "bad", raw, bad), "1 tensors of a wrong (shape|dtype)"
    )
    assert names[0] in text


@pytest.mark.parametrize(
    ("name", "said"),
    [("mtp.0.norm.weight", "num_nextn_predict_layers=0"), ("image_start", "no vision_config")],
)
def test_parts_that_the_config_does_not_know(damaged, name, said):
    text = expect_refusal(damaged(lambda t: t.update({name: torch.zeros(64)})), said)
    assert name in text
