"""The whole NumPy twin on random checkpoints: causality, storage, images, loading."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
import numpy_formats as formats
from numpy_model import NumpyModel, continuation_logits, greedy, load
from numpy_random import CONFIG, TOKEN_MAP, plain_tensors, released_storage

TOKENS = 24
IDS = np.random.default_rng(5).integers(0, 61, size=TOKENS)
IMAGE = np.isin(np.arange(TOKENS), [6, 7, 8])


def model(tensors: dict | None = None, config: dict = CONFIG, **options: object) -> NumpyModel:
    """The random model; the token map and the pad id are given."""
    tensors = plain_tensors(CONFIG) if tensors is None else tensors
    return NumpyModel(config, tensors, engram_token_map=TOKEN_MAP, engram_pad_id=2, **options)


@pytest.fixture(scope="module")
def plain() -> NumpyModel:
    return model()


@pytest.fixture(scope="module")
def whole(plain) -> tuple[np.ndarray, list[dict]]:
    trace: dict = {}
    return plain.forward(IDS, trace=trace), trace["layers"]


def test_logits_are_finite_float32_of_every_position(whole):
    logits, _ = whole
    assert logits.shape == (TOKENS, 61) and logits.dtype == np.float32
    assert np.isfinite(logits).all() and logits.std() > 0.1


@pytest.mark.parametrize("length", [1, 2, 3, 5, 6, 11, 12])
def test_no_position_sees_the_future(plain, whole, length):
    short = plain.forward(IDS[:length])
    assert np.abs(short - whole[0][:length]).max() < 1e-4


def test_every_mechanism_binds_on_the_random_model(whole):
    layers = whole[1]
    for i, visible in ((1, TOKENS // 2), (3, TOKENS), (5, TOKENS)):
        assert (layers[i]["topk"][-1] >= 0).all() and visible > 4
    assert np.array_equal(layers[1]["topk"], layers[2]["topk"]), "layer 2 reuses layer 1"
    assert np.array_equal(layers[3]["topk"], layers[4]["topk"]), "layer 4 reuses layer 3"
    assert not np.array_equal(layers[4]["topk"], layers[5]["topk"]), "layer 5 chooses for itself"
    assert layers[1]["topk"][0].tolist() == [-1] * 4 and layers[3]["topk"][0].tolist()[0] == 0
    assert [i for i, seen in enumerate(layers) if "engram_ids" in seen] == [1, 4]
    assert "topk" not in layers[0] and layers[0]["route_ids"].shape == (TOKENS, 3)
    assert np.allclose(layers[0]["route_weights"].sum(1), 1.5, atol=1e-6)


def test_reindex_layers_stay_inside_the_candidate_blocks():
    narrow = CONFIG | {"candidate_topk_blocks": 1}
    trace: dict = {}
    model(config=narrow).forward(IDS, trace=trace)
    for p, found in enumerate(trace["layers"][5]["topk"]):
        newest = p // 2
        assert set(found[found >= 0] // 2) <= {newest}, f"query {p} left its newest block"
        assert (found >= 0).sum() == p % 2 + 1


def test_the_released_storage_is_the_same_model_as_its_own_values():
    stored = released_storage(plain_tensors(CONFIG))
    quantised = model(stored)
    values = {n: v for n, v in stored.items() if not n.endswith(".scale")}
    for name in [n.removesuffix(".scale") for n in stored if n.endswith(".scale")]:
        if name.endswith("engram.embed"):
            rows = np.arange(len(stored[f"{name}.weight"]))
            values[f"{name}.weight"] = quantised.weights.rows(name, rows)
        else:
            values[f"{name}.weight"] = quantised.weights.matrix(name)
    same = model(values, activations=True).forward(IDS)
    logits = quantised.forward(IDS)
    assert np.array_equal(logits, same), "None on quantised storage is True on plain storage"
    off = model(stored, activations=False).forward(IDS)
    assert np.array_equal(off, model(values).forward(IDS))
    assert np.abs(off - logits).max() > 1e-3, "rounding the inputs shows"


@pytest.mark.parametrize("options", [{"caches": False}, {"activations": True}])
def test_switches_change_the_logits(whole, options):
    assert np.abs(model(**options).forward(IDS) - whole[0]).max() > 1e-3


@pytest.mark.parametrize("fp8_max", [240, 224])
def test_fp8_max_reaches_inputs_and_caches_and_hardly_matters(monkeypatch, fp8_max):
    seen = []
    fake = formats.fake_fp8

    def spy(x: np.ndarray, block: int, limit: int) -> np.ndarray:
        seen.append((block, limit))
        return fake(x, block, limit)

    full = model(activations=True).forward(IDS)
    monkeypatch.setattr(formats, "fake_fp8", spy)
    small = model(activations=True, fp8_max=fp8_max).forward(IDS)
    assert len(seen) > 100 and set(seen) == {(32, fp8_max)}
    # Only the subnormals move: a power of two between the scales changes no other rounding.
    assert 0 < np.abs(small - full).max() < 1


def test_images_bring_embeddings_their_own_bias_and_no_engram(plain, whole):
    embeds = plain.weights.rows("embed", IDS) + np.float32(0.5)
    trace: dict = {}
    logits = plain.forward(IDS, IMAGE, embeds, trace)
    assert np.abs(logits[:6] - whole[0][:6]).max() < 1e-4, "text before the image is untouched"
    assert np.array_equal(logits, plain.forward(IDS, IMAGE, embeds[IMAGE]))
    for layer in (1, 4):
        gates = trace["layers"][layer]["engram_gates"]
        assert (gates[IMAGE] == 0).all() and (gates[~IMAGE] > 0).all()
    unread = np.where(IMAGE, 10**6, IDS)
    assert np.array_equal(logits, plain.forward(unread, IMAGE, embeds)), "image ids are not read"
    no_bias = plain_tensors(CONFIG)
    for name in [n for n in no_bias if n.endswith("bias_vl")]:
        no_bias[name] = no_bias[name.removesuffix("_vl")]
    changed = model(no_bias).forward(IDS, IMAGE, embeds)
    assert np.abs(changed - logits).max() > 1e-3


def test_greedy_is_confirmed_by_one_forward(plain):
    prompt = IDS[:9].tolist()
    tokens = greedy(plain, prompt, 4)
    logits = continuation_logits(plain, prompt, tokens)
    assert logits.shape == (4, 61) and logits.argmax(-1).tolist() == tokens


def test_wrong_ids_and_configs_are_refused(plain):
    for ids in ([], [61], [-1]):
        with pytest.raises(ValueError, match="ids must be"):
            plain.forward(np.array(ids, np.int64))
    with pytest.raises(ValueError, match="no KV source"):
        model(config=CONFIG | {"compress_ratios": [0, 2, 1, 1, 1, 1]})
    with pytest.raises(ValueError, match="index sources"):
        model(config=CONFIG | {"index_source_layer_ids": [1, 5]})
    with pytest.raises(ValueError, match="token map and its pad id"):
        NumpyModel(CONFIG, {}, engram_token_map=None, engram_pad_id=2)
    with pytest.raises(KeyError, match="no tensor 'layers.0.hc_attn_scale'"):
        model({"embed.weight": plain_tensors(CONFIG)["embed.weight"]}).forward(IDS)


@pytest.mark.parametrize("sharded", [False, True])
def test_a_directory_written_by_safetensors_loads(tmp_path, sharded):
    torch = pytest.importorskip("torch")
    writer = pytest.importorskip("safetensors.torch")
    kinds = {"float8_e4m3fn": torch.float8_e4m3fn, "float8_e8m0fnu": torch.float8_e8m0fnu}
    kinds |= {"bfloat16": torch.bfloat16, "float32": torch.float32, "int8": torch.int8}
    stored = released_storage(plain_tensors(CONFIG))
    tensors = {
        name: torch.from_numpy(np.ascontiguousarray(v).view(np.uint8)).view(kinds[v.dtype.name])
        for name, v in stored.items()
    }
    config = {"text_config": CONFIG, "quantization_config": {"weight_block_size": [32, 32]}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    names = sorted(tensors)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    if not sharded:
        shards = {"model.safetensors": names}
    for file, held in shards.items():
        writer.save_file({n: tensors[n] for n in held}, tmp_path / file)
    if sharded:
        where = {n: file for file, held in shards.items() for n in held}
        index = tmp_path / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": where}))
    loaded = load(tmp_path, engram_token_map=TOKEN_MAP, engram_pad_id=2)
    assert np.array_equal(loaded.forward(IDS), model(stored).forward(IDS))
