"""Ordinary models give no finding: what the rules say of them must be justified."""

from __future__ import annotations

import linecache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dslearn.regions.lint import lint

IDS = torch.zeros(2, 8, dtype=torch.int64)


def sample(logits, table):
    best = logits.argmax(-1)
    values, chosen = logits.topk(4)
    drawn = torch.multinomial(values.softmax(-1), 1)
    token = chosen.gather(-1, drawn).squeeze(-1)
    return F.embedding(token, table) + table[best], token == best


def rotate(x, positions):
    angle = positions[:, None] / 10000 ** (torch.arange(0, 16, 2) / 16)
    cos, sin = angle.cos(), angle.sin()
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


def decode(q, key, pool, slot):
    pool.index_copy_(0, slot, key)
    seen = torch.arange(len(pool)) <= slot.max()
    scores = (q @ pool.T).masked_fill(~seen, -torch.inf)
    return scores.softmax(-1) @ pool


MODELS: dict[str, tuple[Any, ...]] = {
    "mlp": (nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)), torch.ones(4, 64)),
    "embedding, norm and softmax head": (
        nn.Sequential(
            nn.Embedding(2000, 64), nn.LayerNorm(64), nn.Linear(64, 2000), nn.Softmax(-1)
        ),
        IDS,
    ),
    "multi-head attention": (nn.MultiheadAttention(64, 4).eval(), *[torch.rand(8, 2, 64)] * 3),
    "convolutions": (
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()).eval(),
        torch.rand(1, 3, 8, 8),
    ),
    "scaled dot product": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        *[torch.rand(1, 4, 8, 16)] * 3,
    ),
    "cross entropy": (F.cross_entropy, torch.rand(4, 10), torch.zeros(4, dtype=torch.int64)),
    "sampling": (sample, torch.rand(4, 1000), torch.rand(1000, 16)),
    "rotation": (rotate, torch.rand(8, 16), torch.arange(8)),
    "decode with a cache": (
        decode,
        torch.rand(1, 16),
        torch.rand(1, 16),
        torch.zeros(32, 16),
        torch.tensor([3]),
    ),
    "uint8 pixels": (lambda x: x.float() / 255, torch.zeros(1, 3, 8, 8, dtype=torch.uint8)),
    "bytes to a record": (
        lambda x, pool, row: pool.index_copy_(0, row, x.round().to(torch.uint8)),
        torch.rand(1, 16),
        torch.zeros(8, 16, dtype=torch.uint8),
        torch.tensor([3]),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_an_ordinary_function_gives_no_finding(name):
    function, *inputs = MODELS[name]
    report = lint(function, *inputs)
    assert report.findings == () and report.operations > 1


def test_models_of_transformers_give_no_finding_but_a_true_one():
    transformers = pytest.importorskip("transformers")
    sizes = dict(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=4,
    )
    llama = transformers.LlamaModel(transformers.LlamaConfig(**sizes, num_key_value_heads=2))
    x = torch.rand(1, 8, 64)
    cos, sin = llama.rotary_emb(x, torch.arange(8)[None])

    def layer(x, cos, sin):
        return llama.layers[0].eval()(x, position_embeddings=(cos, sin), attention_mask=None)

    # Its attention asks for an environment variable while it is traced: it does, in some versions.
    report = lint(layer, x, cos, sin)
    assert {finding.rule for finding in report.findings} <= {"environment-read"}
    assert all("os." in linecache.getline(f.path, f.line) for f in report.findings)
    assert report.operations > 50
    bert = transformers.BertModel(transformers.BertConfig(**sizes)).eval()
    report = lint(bert, IDS, torch.ones_like(IDS), levels={"environment-read": "off"})
    assert report.findings == () and report.operations > 50
