"""The released `config.json` as one frozen, checked dataclass.

Field names are the checkpoint's own (`text_config` of DeepSeek-V4.1); a flat file with the same
names is read too. Anything that would change the arithmetic in a way this library does not
implement is refused here, with the reason, before a single tensor is read.
Source: docs/reference/configuration.md.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from dslearn.errors import ConfigError
from dslearn.files import readable

Role = Literal["local", "full", "full+candidate", "reindex", "reuse"]

# Settings with one implemented value: (field, value, why another one is refused).
_FIXED: tuple[tuple[str, Any, str], ...] = (
    ("hidden_act", "silu", "the experts are clamped SwiGLU"),
    ("attention_bias", False, "no attention projection of V4.1 has a bias"),
    ("tie_word_embeddings", False, "embedding and head are separate tables"),
    ("scoring_func", "sqrtsoftplus", "the router scores with sqrt(softplus(x))"),
    ("topk_method", "noaux_tc", "the router bias only selects"),
    ("num_key_value_heads", 1, "keys and values are one shared vector"),
    ("n_shared_experts", 1, "the released layers have one shared expert"),
)


@dataclass(frozen=True)
class Quantization:
    """`quantization_config`: how the quantised linears are stored.

    Fields: `weight_block_size` side of a scale tile (32 in V4.1, 128 in V4), `expert_dtype` "fp4"
    (e2m1, one ue8m0 scale per 32 inputs) or "fp8" (tiles like the dense linears).
    """

    weight_block_size: int = 32
    expert_dtype: str = "fp4"

    @staticmethod
    def from_dict(raw: dict[str, Any]) -> Quantization:
        """Read the JSON object; raise ConfigError on a method or scale this library cannot read."""
        rules = {"quant_method": "fp8", "scale_fmt": "ue8m0", "activation_scheme": "dynamic"}
        for key, only in rules.items():
            if raw.get(key, only) != only:
                raise ConfigError(f"quantization_config.{key}={raw[key]!r}: must be {only!r}")
        block = raw.get("weight_block_size", [32, 32])
        if block not in ([32, 32], [128, 128]):
            raise ConfigError(
                f"quantization_config.weight_block_size={block}: must be [32, 32] (V4.1) or "
                "[128, 128] (V4)"
            )
        expert = raw.get("expert_dtype", "fp4")
        if expert not in ("fp4", "fp8"):
            raise ConfigError(
                f"quantization_config.expert_dtype={expert!r}: must be 'fp4' or 'fp8'"
            )
        return Quantization(block[0], expert)


@dataclass(frozen=True)
class Yarn:
    """`rope_scaling`: frequencies below the ramp are divided by `factor` (arXiv 2309.00071)."""

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0


@dataclass(frozen=True)
class Config:
    """A DeepSeek-V4.1 text model. Names, meanings and defaults are those of the released file.

    Raises:
        ConfigError: sizes that contradict each other, or layer lists that leave a layer without
            a source; the message names the field, the value and the rule.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    moe_intermediate_size: int
    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    n_routed_experts: int
    num_experts_per_tok: int
    routed_scaling_factor: float
    sliding_window: int
    rope_theta: float
    compress_rope_theta: float
    compress_ratios: tuple[int, ...]
    swiglu_limit: float
    rms_norm_eps: float
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float
    max_position_embeddings: int
    rope_scaling: Yarn | None = None
    kv_source_layer_ids: tuple[int, ...] = ()
    index_source_layer_ids: tuple[int, ...] = ()
    index_n_heads: int = 0
    index_head_dim: int = 0
    index_topk: int = 0
    candidate_source_layer_id: int | None = None
    candidate_topk_blocks: int = 0
    candidate_block_size: int = 8
    norm_topk_prob: bool = True
    gate_temp: float = 1.0
    engram_layer_ids: tuple[int, ...] = ()
    engram_num_embeddings: tuple[int, ...] = ()
    engram_max_ngram_size: int = 4
    engram_vocab_size: int = 0
    engram_n_heads: int = 0
    engram_head_dim: int = 0
    engram_pad_token_id: int = 2
    engram_compressed_vocab_size: int = 0
    num_nextn_predict_layers: int = 0
    dspark_block_size: int = 5
    dspark_noise_token_id: int = 0
    dspark_target_layer_ids: tuple[int, ...] = ()
    dspark_markov_rank: int = 0
    dspark_n_routed_experts: int = 0
    dspark_num_experts_per_tok: int = 0
    bos_token_id: int = 0
    eos_token_id: int = 1
    pad_token_id: int = 2
    image_token_id: int | None = None
    quantization: Quantization | None = None
    vision: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        from dslearn.config_check import check

        check(self)

    @staticmethod
    def from_file(path: str | Path) -> Config:
        """Read `path`, a config.json or a directory that holds one."""
        path = Path(path)
        with readable(path):
            path = path / "config.json" if path.is_dir() else path
            try:
                raw = json.loads(path.read_text(encoding="utf-8"))
            except FileNotFoundError:
                raise ConfigError(f"{path}: no such file; a checkpoint needs one") from None
            except (json.JSONDecodeError, UnicodeDecodeError) as error:
                raise ConfigError(f"{path}: not JSON ({error}); download it again") from error
        return Config.from_dict(raw)

    @staticmethod
    def from_dict(raw: dict[str, Any]) -> Config:
        """Build from the parsed JSON: nested (`text_config`) or flat; see the class for errors."""
        if not isinstance(raw, dict) or not isinstance(raw.get("text_config") or {}, dict):
            raise ConfigError("config.json and its text_config must be JSON objects (name: value)")
        text = raw.get("text_config") or {}
        flat = {**raw, **text}
        for kind in (raw.get("model_type"), text.get("model_type")):
            if kind not in (None, "deepseek_v41", "deepseek_v41_text"):
                raise ConfigError(
                    f"model_type={kind!r}: this library runs 'deepseek_v41'; V4 and V3 differ in "
                    "their compressors, hyper-connections and norms"
                )
        for name, allowed, why in _FIXED:
            if flat.get(name, allowed) != allowed:
                raise ConfigError(f"{name}={flat[name]!r}: only {allowed!r} is implemented, {why}")
        known = {f.name for f in fields(Config)} - {"quantization", "vision", "rope_scaling"}
        given: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in flat.items()
            if name in known and value is not None
        }
        missing = [f.name for f in fields(Config) if f.name not in given and f.default is MISSING]
        if missing:
            raise ConfigError(f"config.json lacks {', '.join(missing)}: V4.1 defines all of them")
        for alias in ("dspark_per_tok", "dspark_n_activated_experts"):
            if alias in flat:
                given.setdefault("dspark_num_experts_per_tok", flat[alias])
        quantization = raw.get("quantization_config") or flat.get("quantization_config")
        return Config(
            **given,
            rope_scaling=_yarn(flat.get("rope_scaling")),
            quantization=Quantization.from_dict(quantization) if quantization else None,
            vision=tuple(sorted((raw.get("vision_config") or {}).items())),
        )

    @property
    def ratios(self) -> tuple[int, ...]:
        """Compression ratio of each main layer: 0 window only, 2 or 1 compressed entries too."""
        return self.compress_ratios[: self.num_hidden_layers]

    @property
    def roles(self) -> tuple[Role, ...]:
        """What each main layer does about long-range keys ("Roles" in the source above)."""
        return tuple(self._role(i) for i in range(self.num_hidden_layers))

    def _role(self, layer: int) -> Role:
        if self.ratios[layer] == 0:
            return "local"
        if layer in self.kv_source_layer_ids:
            return "full+candidate" if layer == self.candidate_source_layer_id else "full"
        return "reindex" if layer in self.index_source_layer_ids else "reuse"

    def kv_source(self, layer: int) -> int | None:
        """The layer whose compressed entries `layer` attends to: the latest at or below it."""
        return _latest(self.kv_source_layer_ids, layer) if self.ratios[layer] else None

    def index_source(self, layer: int) -> int | None:
        """The layer whose top-k selection `layer` attends with: the latest at or below it."""
        return _latest(self.index_source_layer_ids, layer) if self.ratios[layer] else None

    def uses_candidates(self, layer: int) -> bool:
        """Whether `layer` selects only inside the candidate blocks of the layer it reads."""
        candidate = self.candidate_source_layer_id
        return self._role(layer) == "reindex" and self.kv_source(layer) == candidate is not None

    @property
    def engram_columns(self) -> int:
        """Table rows read per token and Engram layer: one per n-gram size and hash head."""
        return (self.engram_max_ngram_size - 1) * self.engram_n_heads


def _latest(sources: tuple[int, ...], layer: int) -> int:
    return max(s for s in sources if s <= layer)


def _yarn(raw: dict[str, Any] | None) -> Yarn | None:
    if not raw:
        return None
    kind = raw.get("rope_type", raw.get("type", "yarn"))
    if kind == "default":  # the usual spelling of "no scaling"
        return None
    if kind != "yarn":
        raise ConfigError(f"rope_scaling type {kind!r}: V4.1 uses 'yarn', nothing else is read")
    names = {f.name for f in fields(Yarn)}
    try:
        return Yarn(**{k: v for k, v in raw.items() if k in names})
    except TypeError as error:
        raise ConfigError(
            "rope_scaling lacks factor or original_max_position_embeddings: yarn needs both"
        ) from error
