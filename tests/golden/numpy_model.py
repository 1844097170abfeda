"""The DeepSeek-V4.1 text forward a second time, in plain NumPy, to catch errors of the first.

Nothing here imports the library: the model is derived again from its description, over a whole
sequence at once, by absolute positions, without any cache. Arithmetic is float32 (sums of
products in float64, rounded once), with the model's own rounding of linear inputs and of what the
caches would hold. Legend: T tokens, S streams, d hidden, V vocabulary.

Use it with this directory on sys.path:

    model = load("checkpoint")
    logits = model.forward(np.array(ids))
    tokens = greedy(model, ids, 8)
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy_attention import Attention, attention
from numpy_checkpoint import (
    Weights,
    matmul,
    read_directory,
    rms_norm,
    text_config,
    weight_tile,
)
from numpy_engram import EngramHash, compressed_token_map, engram_layer
from numpy_layers import collapse, expand, hyper_coefficients, moe

F32 = np.float32


class NumpyModel:
    """A checkpoint that can be run over one sequence from position 0.

    `config` is the parsed config.json (nested or flat), `tensors` the raw tensors by name:
    ml_dtypes arrays for fp8, e8m0 and bf16, int8 for packed fp4, or plain floats.
    `engram_pad_id` is the compressed id of the pad token. `activations`: None rounds the inputs
    of linears that are stored quantised, True those that the released checkpoint stores
    quantised, False none. `caches` rounds window keys, compressed entries, index keys and index
    queries. `fp8_max` bounds every e4m3 value formed here.
    """

    def __init__(  # noqa: PLR0913 - one keyword per numeric switch, as the library has them
        self,
        config: dict,
        tensors: dict[str, np.ndarray],
        *,
        engram_token_map: np.ndarray | None,
        engram_pad_id: int | None,
        activations: bool | None = None,
        caches: bool = True,
        fp8_max: int = 448,
    ) -> None:
        self.cfg, self.caches, self.fp8_max = text_config(config), caches, fp8_max
        self.weights = Weights(tensors, weight_tile(config), activations, fp8_max)
        self.engram_layers = list(self.cfg.get("engram_layer_ids") or [])
        self.hash = None
        if self.engram_layers:
            if engram_token_map is None or engram_pad_id is None:
                raise ValueError("a model with Engram layers needs a token map and its pad id")
            self.hash = EngramHash(self.cfg, engram_token_map, engram_pad_id)
        self._check_sources()

    def _check_sources(self) -> None:
        """Every compressed layer needs a KV source and index source of its own ratio below it."""
        ratios = self.cfg["compress_ratios"][: self.cfg["num_hidden_layers"]]
        kv, index = self.cfg["kv_source_layer_ids"], self.cfg["index_source_layer_ids"]
        if not set(kv) <= set(index):
            raise ValueError(f"KV sources {kv} must all be index sources {index}")
        for layer, ratio in enumerate(ratios):
            below = [source for source in kv if source <= layer]
            if ratio and (not below or ratios[max(below)] != ratio):
                raise ValueError(f"layer {layer} of ratio {ratio} has no KV source of that ratio")

    def _embed(self, ids: np.ndarray, image: np.ndarray, embeds: np.ndarray | None) -> np.ndarray:
        """[T, d]: table rows, image positions overwritten by their rows of `embeds`."""
        inside = (ids >= 0) & (ids < self.cfg["vocab_size"])
        if not len(ids) or not (inside | image).all():
            raise ValueError(f"ids must be 1 or more of 0..{self.cfg['vocab_size'] - 1}: {ids}")
        x = self.weights.rows("embed", np.where(inside, ids, 0))
        if embeds is not None:
            rows = np.asarray(embeds, F32)
            x[image] = rows[image] if len(rows) == len(ids) else rows
        return x

    def _block(
        self, layer: int, h: np.ndarray, pre: np.ndarray, att: Attention, image: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, dict]:
        """Attention then experts; each collapses with the pre-mix of the sublayer before it."""
        cfg, w, name = self.cfg, self.weights, f"layers.{layer}"
        eps = cfg["rms_norm_eps"]
        attn_pre, post, comb = hyper_coefficients(cfg, w, f"{name}.hc_attn", h)
        x = rms_norm(collapse(h, pre), w.plain(f"{name}.attn_norm.weight"), eps)
        h = expand(attention(att, layer, x), h, post, comb)
        ffn_pre, post, comb = hyper_coefficients(cfg, w, f"{name}.hc_ffn", h)
        x = rms_norm(collapse(h, attn_pre), w.plain(f"{name}.ffn_norm.weight"), eps)
        y, ids, chosen = moe(cfg, w, f"{name}.ffn", x, image)
        h = expand(y, h, post, comb)
        seen = {"streams": h, "pre": ffn_pre, "route_ids": ids, "route_weights": chosen}
        if cfg["compress_ratios"][layer]:
            seen["topk"] = _padded(att.shared.selected, cfg["index_topk"])
        return h, ffn_pre, seen

    def forward(
        self,
        ids: np.ndarray,
        image_mask: np.ndarray | None = None,
        embeds: np.ndarray | None = None,
        trace: dict | None = None,
    ) -> np.ndarray:
        """Logits [T, V] of ids [T] at positions 0..T-1.

        image_mask [T] marks image positions; `embeds` holds their embeddings, [T, d] (other rows
        are not read) or one row per image position. `trace` receives {"layers": [...]}.
        """
        ids = np.asarray(ids, np.int64)
        image = np.zeros(len(ids), bool) if image_mask is None else np.asarray(image_mask, bool)
        x = self._embed(ids, image, embeds)
        rows = self.hash(ids, image) if self.hash else None
        h = np.repeat(x[:, None, :], self.cfg["hc_mult"], 1)
        pre = np.zeros(h.shape[:2], F32)
        pre[:, 0] = 1
        att = Attention(self.cfg, self.weights, self.caches, self.fp8_max)
        layers = []
        for layer in range(self.cfg["num_hidden_layers"]):
            extra = {}
            if layer in self.engram_layers:
                found, eps = rows[self.engram_layers.index(layer)], self.cfg["rms_norm_eps"]
                name = f"layers.{layer}.engram"
                h, gates = engram_layer(self.weights, name, h, found, image, eps)
                extra = {"engram_ids": found, "engram_gates": gates}
            h, pre, seen = self._block(layer, h, pre, att, image)
            layers.append(seen | extra)
        if trace is not None:
            trace["layers"] = layers
        norm = self.weights.plain("norm.weight")
        x = rms_norm(collapse(h, pre), norm, self.cfg["rms_norm_eps"])
        head = "embed" if self.cfg.get("tie_word_embeddings") else "head"
        return matmul(x, self.weights.matrix(head).T)


def _padded(selected: list[np.ndarray], k: int) -> np.ndarray:
    """Per-token selections as one array [T, k], -1 where there is no entry."""
    out = np.full((len(selected), k), -1, np.int64)
    for p, found in enumerate(selected):
        out[p, : len(found)] = found
    return out


def load(directory: str | Path, **options: object) -> NumpyModel:
    """A checkpoint directory; `options` are the keywords of NumpyModel.

    Without an `engram_token_map` the Engram token compression is derived from tokenizer.json.
    """
    config, tensors = read_directory(Path(directory))
    cfg = text_config(config)
    options = {"engram_token_map": None, "engram_pad_id": None} | options
    if cfg.get("engram_layer_ids") and options["engram_token_map"] is None:
        from tokenizers import Tokenizer

        token_map = compressed_token_map(Tokenizer.from_file(f"{directory}/tokenizer.json"))
        want = cfg.get("engram_compressed_vocab_size") or int(token_map.max()) + 1
        if token_map.max() + 1 != want:
            raise ValueError(f"tokenizer.json compresses to {token_map.max() + 1} ids, not {want}")
        pad = int(token_map[cfg["engram_pad_token_id"]])
        options |= {"engram_token_map": token_map, "engram_pad_id": pad}
    return NumpyModel(config, tensors, **options)


def greedy(model: NumpyModel, prompt_ids: list[int], n: int) -> list[int]:
    """n tokens after the prompt, ties to the lowest id; each step recomputes everything."""
    ids = list(prompt_ids)
    for _ in range(n):
        ids.append(int(np.argmax(model.forward(np.array(ids))[-1])))
    return ids[len(prompt_ids) :]


def continuation_logits(model: NumpyModel, prompt_ids: list[int], tokens: list[int]) -> np.ndarray:
    """Logits [len(tokens), V] that each token of a known continuation was chosen from, in one go.

    `logits.argmax(-1) == tokens` everywhere proves that `tokens` is the greedy continuation.
    """
    ids = np.array([*prompt_ids, *tokens[:-1]])
    return model.forward(ids)[len(prompt_ids) - 1 :]
