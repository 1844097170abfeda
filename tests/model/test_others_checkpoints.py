"""Checkpoints written by others: any of the storages, odd sizes, flat or nested config, own map.

Each directory is read twice, by `dslearn.load` and by the NumPy twin, which has its own reader.
"""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

import dslearn
from dslearn.checkpoint.inventory import default_dtype
from dslearn.checkpoint.names import Entry
from dslearn.checkpoint.storage import quantise
from dslearn.config import Config
from dslearn.errors import CheckpointError, ConfigError
from dslearn.numerics import Numerics
from tests.support.files import save_single
from tests.support.models import forced_blocks, save, weights
from tests.support.random_model import tiny_random_config, token_map

sys.path.insert(0, str(Path(__file__).parents[1] / "golden"))
import numpy_model
from numpy_random import CONFIG, TOKEN_MAP, plain_tensors, released_storage

TOKENS = 26
EXACT = {"activations": False, "caches": False}
SIX_LAYERS = {
    "hidden_size": 96,
    "num_hidden_layers": 6,
    "compress_ratios": [0, 2, 2, 1, 1, 1],
    "kv_source_layer_ids": [1, 3],
    "index_source_layer_ids": [1, 3, 5],
    "candidate_source_layer_id": 3,
    "engram_layer_ids": [1, 4],
}
CASES = {
    "plain": ("plain", {"quantization_config": None}),
    "plain-96": ("plain", {"quantization_config": None, **SIX_LAYERS}),
    "mixed": ("mixed", {"quantization_config": None}),
    "mixed-96": ("mixed", {"quantization_config": None, **SIX_LAYERS}),
    "released": ("released", {}),
    "released-96": ("released", SIX_LAYERS),
    "fp8-experts": (
        "released",
        {"quantization_config": {"quant_method": "fp8", "expert_dtype": "fp8"}},
    ),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Directories by case, written when first asked for."""
    made: dict[str, tuple[Path, np.ndarray, int]] = {}

    def get(case: str) -> tuple[Path, np.ndarray, int]:
        if case not in made:
            storage, overrides = CASES[case]
            raw = tiny_random_config(**overrides)
            folder = save(tmp_path_factory.mktemp(case), raw, storage, seed=len(made))
            made[case] = folder, token_map(raw), 2
        return made[case]

    return get


def pair(found: tuple[Path, np.ndarray, int], **switches):
    """The directory through both readers, and a prompt."""
    folder, mapping, pad = found
    options = {"engram_token_map": mapping, "engram_pad_id": pad}
    mine = dslearn.load(folder, Numerics(**switches), **options)
    other = numpy_model.load(folder, **options, **switches)
    ids = np.random.default_rng(3).integers(0, mine.config.vocab_size, size=(1, TOKENS))
    return mine, other, torch.from_numpy(ids)


@pytest.mark.parametrize("case", CASES)
def test_logits_in_one_call_and_in_steps(written, case):
    mine, other, ids = pair(written(case), **EXACT)
    want = torch.from_numpy(other.forward(ids[0].numpy()))
    assert (mine.forward(ids)[0] - want).abs().max() < 1e-4
    state = mine.new_state(1, TOKENS)
    steps = [mine.forward(ids[:, :17], state)]
    steps += [mine.forward(ids[:, p : p + 1], state) for p in range(17, TOKENS)]
    assert (torch.cat(steps, 1)[0] - want).abs().max() < 1e-4


@pytest.mark.parametrize("case", ["mixed", "released", "fp8-experts"])
def test_inputs_of_stored_quantised_linears_are_quantised_by_default(written, case):
    """`activations=None`: in the mixed file only the Engram tables are fp8, which no linear is."""
    mine, other, ids = pair(written(case))
    seen: dict = {}
    other.forward(ids[0].numpy(), trace=seen)
    blocks = forced_blocks(mine.model, ids, seen["layers"])
    for layer, (got, want) in enumerate(zip(blocks, seen["layers"], strict=True)):
        gap = np.abs(got["streams"].numpy() - want["streams"]).max((1, 2))
        rows = (gap < 1e-4 * np.abs(want["streams"]).max()).mean()
        assert rows > 0.5, f"layer {layer}: {rows:.0%} of the rows agree"


def test_which_linears_count_as_stored_quantised(written):
    model = pair(written("released"))[0].model
    layer = model.layers[1]
    quantised = [layer.attn.wq_a, layer.attn.wo_b, layer.attn.indexer.wq_b, layer.engram.wkv]
    quantised += [layer.ffn.experts[0].w1, layer.ffn.shared_experts.w2]
    for linear in quantised:
        x = torch.linspace(-3, 3, linear.weight.shape[1])[None]
        assert not torch.equal(linear.prepare(x), x)
    for linear in (layer.attn.wo_a, layer.attn.indexer.weights_proj, layer.attn.compressor.wkv):
        x = torch.linspace(-3, 3, linear.weight.shape[1])[None]
        assert torch.equal(linear.prepare(x), x)
    plain = pair(written("mixed"))[0].model
    x = torch.linspace(-3, 3, 64)[None]
    assert torch.equal(plain.layers[1].attn.wq_a.prepare(x), x)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("storage", ["plain", "released"])
def test_a_checkpoint_that_another_program_quantised(tmp_path, nested, storage):
    """Tensors by ml_dtypes, three streams, 3-grams, a map of 50 ids, `rope_type` spelled so."""
    kinds = {
        name: getattr(torch, name) for name in ("float8_e4m3fn", "float8_e8m0fnu", "bfloat16")
    } | {"float32": torch.float32, "int8": torch.int8}
    tensors = plain_tensors(CONFIG, seed=7)
    tensors = released_storage(tensors) if storage == "released" else tensors
    stored = {
        name: torch.from_numpy(np.ascontiguousarray(v).view(np.uint8)).view(kinds[v.dtype.name])
        for name, v in tensors.items()
    }
    text = {"max_position_embeddings": 512} | CONFIG
    top = {"quantization_config": {"weight_block_size": [32, 32]}} if storage == "released" else {}
    config = {"model_type": "deepseek_v41", "text_config": text} if nested else text
    folder = save_single(tmp_path / "model", config | top, stored)
    mine, other, ids = pair((folder, TOKEN_MAP, 2), **EXACT)
    want = torch.from_numpy(other.forward(ids[0].numpy()))
    assert (mine.forward(ids)[0] - want).abs().max() < 1e-4


def test_the_map_may_be_any_array_and_the_pad_defaults_to_the_config(written):
    folder, mapping, pad = written("plain")
    ids = torch.tensor([[5, 6, 7, 8]])
    logits = [
        dslearn.load(folder, Numerics(), engram_token_map=kind, **rest).forward(ids)
        for kind in (mapping, mapping.astype(np.int64), torch.from_numpy(mapping))
        for rest in ({}, {"engram_pad_id": pad})
    ]
    assert all(torch.equal(logits[0], x) for x in logits[1:])
    other = dslearn.load(folder, Numerics(), engram_token_map=mapping, engram_pad_id=9)
    assert not torch.allclose(other.forward(ids), logits[0], atol=1e-2), "the pad id matters"


def test_maps_and_directories_that_do_not_fit_are_refused(written, tmp_path):
    folder, mapping, pad = written("plain")
    with pytest.raises(CheckpointError, match="one entry per token id"):
        dslearn.load(folder, engram_token_map=mapping[:-1], engram_pad_id=pad)
    with pytest.raises(ConfigError, match="right tokenizer"):
        dslearn.load(folder, engram_token_map=mapping + 1, engram_pad_id=pad)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        dslearn.load(folder)
    with pytest.raises(CheckpointError, match="no such directory"):
        dslearn.load(tmp_path / "nowhere")


def test_every_parameter_has_a_tensor_and_every_tensor_a_parameter(written):
    """LoongForge#143, spark-vllm-docker#331: a prefix lost twelve tensors and nobody noticed."""
    from dslearn.model.weights import named_tensors

    folder, mapping, _ = written("mixed")
    model = dslearn.load(folder, engram_token_map=mapping).model
    _, tensors = numpy_model.read_directory(folder)
    names = {name for name in tensors if not name.endswith(".scale")}
    tables = {f"layers.{i}.engram.embed.weight" for i in model.cfg.engram_layer_ids}
    assert {name for name, _ in named_tensors(model)} | tables == names
    assert len(names) > 250


def test_a_text_checkpoint_without_bias_vl_uses_its_bias(tmp_path):
    from safetensors.torch import load_file

    raw = tiny_random_config(quantization_config=None)
    whole = save(tmp_path / "whole", raw, "plain")
    tensors = load_file(whole / "model.safetensors")
    less = {name: x for name, x in tensors.items() if not name.endswith("bias_vl")}
    bare = save_single(tmp_path / "bare", raw, less)
    options = {"engram_token_map": token_map(raw), "engram_pad_id": 2}
    models = [dslearn.load(folder, Numerics(), **options) for folder in (whole, bare)]
    ids, mask = torch.arange(6)[None], torch.tensor([[False, True, True, False, False, False]])
    assert torch.equal(*(model.forward(ids) for model in models))
    assert not torch.equal(*(model.forward(ids, image_mask=mask) for model in models))
    gate = models[1].model.layers[0].ffn.gate
    assert torch.equal(gate.bias_vl, gate.bias)


def test_each_linear_follows_its_own_storage(tmp_path):
    """Half of the linears and experts plain, half quantised, side by side in every module."""
    raw = tiny_random_config()
    cfg = Config.from_dict(raw)

    def dtype_of(name: str, entry: Entry) -> str:
        return "F32" if zlib.crc32(name.encode()) % 2 else default_dtype(cfg, entry)

    folder = save_single(tmp_path / "m", raw, quantise(cfg, weights(raw), dtype_of))
    mine, other, ids = pair((folder, token_map(raw), 2), caches=False)
    seen: dict = {}
    other.forward(ids[0].numpy(), trace=seen)
    blocks = forced_blocks(mine.model, ids, seen["layers"])
    shares = []
    for got, want in zip(blocks, seen["layers"], strict=True):
        gap = np.abs(got["streams"].numpy() - want["streams"]).max((1, 2))
        shares.append((gap < 1e-4 * np.abs(want["streams"]).max()).mean())
    assert min(shares) > 0.8, f"rows that agree, by layer: {shares}"
