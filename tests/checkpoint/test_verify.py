"""Tensors that are not what the config says: one message, every key."""

from __future__ import annotations

import pytest
import torch

from dslearn.checkpoint.reader import Checkpoint
from dslearn.errors import CheckpointError


def expect_refusal(directory, match):
    with pytest.raises(CheckpointError, match=match) as caught:
        Checkpoint(directory)
    text = str(caught.value)
    assert "\n" not in text and str(directory) in text
    return text


def test_the_undamaged_checkpoint_opens(damaged, stored):
    checkpoint = Checkpoint(damaged())
    assert set(checkpoint.names) == set(stored)
    assert checkpoint.parts == ("target",)


@pytest.mark.parametrize(
    "name",
    [
        "embed.weight",
        "norm.weight",
        "layers.0.hc_attn_base",
        "layers.0.attn.wq_a.weight",
        "layers.0.attn.wq_a.scale",
        "layers.0.attn.attn_sink",
        "layers.1.attn.compressor.wgate.weight",
        "layers.6.attn.indexer.weights_proj.weight",
        "layers.5.ffn.experts.5.w2.scale",
        "layers.5.ffn.gate.bias",
        "layers.1.engram.embed.scale",
        "layers.5.engram.k_weight",
    ],
)
def test_a_missing_tensor_is_named(damaged, name):
    text = expect_refusal(damaged(lambda t: t.pop(name)), "1 tensors missing")
    assert f"missing: {name};" in text


def test_many_missing_tensors_are_counted_and_eight_are_listed(damaged):
    def drop(tensors):
        for name in [n for n in tensors if ".ffn.experts." in n]:
            del tensors[name]

    text = expect_refusal(damaged(drop), "288 tensors missing")
    assert "and 280 more" in text


@pytest.mark.parametrize(
    "name",
    [
        "layers.0.attn.wq_c.weight",
        "layers.8.attn_norm.weight",
        "layers.4.attn.compressor.wgate.weight",  # ratio 1
        "layers.6.attn.indexer.wk.weight",  # reindex layers read another layer's keys
        "layers.0.ffn.experts.6.w1.weight",
        "hc_head_fn",
        "lm_head.weight",
    ],
)
def test_an_unexpected_tensor_is_named(damaged, name):
    text = expect_refusal(
        damaged(lambda t: t.update({name: torch.zeros(4)})), "1 tensors unexpected"
    )
    assert name in text


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("norm.weight", torch.float16),
        ("norm.weight", torch.float64),
        ("embed.weight", torch.int8),
        ("layers.0.ffn.gate.bias", torch.bfloat16),  # narrower than the config promises
        ("layers.0.attn.attn_sink", torch.float16),
        ("layers.0.attn.wq_a.weight", torch.uint8),
        ("layers.0.attn.wq_a.weight", torch.int8),
        ("layers.0.attn.wq_a.weight", torch.float8_e5m2),
        ("layers.0.attn.wq_a.scale", torch.uint8),
        ("layers.0.attn.wq_a.scale", torch.float32),
        ("layers.0.ffn.experts.0.w1.weight", torch.uint8),
        ("layers.0.ffn.experts.0.w1.weight", torch.float8_e4m3fn),
        ("layers.1.engram.embed.weight", torch.int8),
        ("layers.1.engram.embed.scale", torch.float32),
    ],
)
def test_a_wrong_dtype_is_named_with_the_right_ones(damaged, name, dtype):
    def change(tensors):
        old = tensors[name]
        same_width = old.dtype.itemsize == dtype.itemsize
        tensors[name] = old.view(dtype) if same_width else old.float().to(dtype)

    text = expect_refusal(damaged(change), "1 tensors of a wrong dtype")
    assert f"{name} is" in text and "must be" in text


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("embed.weight", (161, 64)),
        ("layers.0.attn.wq_b.weight", (32, 256)),
        ("layers.0.ffn.experts.3.w1.weight", (96, 64)),
        ("layers.0.ffn.gate.bias_vl", (7,)),
        ("layers.0.hc_ffn_scale", (4,)),
        ("layers.1.engram.embed.weight", (383, 64)),
        ("layers.1.engram.embed.scale", (384, 3)),
        ("layers.0.ffn.experts.3.w1.scale", (3, 3)),
        ("layers.0.attn.wq_b.scale", (1, 8)),
    ],
)
def test_a_wrong_shape_is_named_with_the_right_one(damaged, name, shape):
    def change(tensors):
        tensors[name] = torch.zeros(shape, dtype=torch.uint8).to(tensors[name].dtype)

    text = expect_refusal(damaged(change), "1 tensors of a wrong shape")
    assert f"{name} is {list(shape)}, must be" in text


def test_several_kinds_of_damage_come_in_one_message(damaged):
    def change(tensors):
        del tensors["norm.weight"]
        tensors["extra"] = torch.zeros(1)
        tensors["embed.weight"] = torch.zeros(3, 3)
        tensors["head.weight"] = tensors["head.weight"].half()

    text = expect_refusal(damaged(change), "missing")
    for part in ("missing: norm.weight", "unexpected: extra", "wrong shape: embed", "dtype: head"):
        assert part in text


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_scale_beside_a_plain_weight_is_refused(damaged, dtype):
    name = "layers.2.ffn.shared_experts.w1.weight"

    def change(tensors):
        tensors[name] = tensors[name].float().to(dtype)

    text = expect_refusal(damaged(change), "1 scales beside a weight that is not quantised")
    assert "layers.2.ffn.shared_experts.w1.scale" in text


def test_a_plain_weight_among_quantised_ones_is_accepted(damaged, dense):
    name = "layers.2.ffn.shared_experts.w1.weight"

    def change(tensors):
        tensors[name] = dense[name].bfloat16()
        del tensors[name.replace("weight", "scale")]

    checkpoint = Checkpoint(damaged(change))
    assert not checkpoint.is_quantised(name)
    assert checkpoint.is_quantised("layers.2.ffn.shared_experts.w2.weight")
    assert torch.equal(checkpoint.dense(name), dense[name].bfloat16().float())


def test_fp32_where_bf16_is_the_rule_is_accepted(damaged, dense):
    checkpoint = Checkpoint(damaged(lambda t: t.update({"norm.weight": dense["norm.weight"]})))
    assert checkpoint.spec("norm.weight").dtype == "F32"
    assert torch.equal(checkpoint.dense("norm.weight"), dense["norm.weight"])
