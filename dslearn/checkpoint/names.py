"""The weights of a model by name: matrix shapes, budget groups, and how each may be stored.

The names are the released checkpoint's own. Generated from the config, in storage order: layer by
layer, then the draft stages (`mtp.*`), then vision tower and aligner.
Source: docs/reference/checkpoint.md, "Inventory".

Shape legend: H hidden, O outputs, I inputs, E experts, S streams (hc_mult).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dslearn.errors import CheckpointError

if TYPE_CHECKING:
    from dslearn.config import Config

Kind = Literal["plain", "linear", "expert", "rows"]
Part = Literal["target", "draft", "vision"]
PARTS: tuple[Part, ...] = ("target", "draft", "vision")


@dataclass(frozen=True)
class Entry:
    """One logical weight: its matrix shape, how it may be stored, and its dtype when plain.

    `kind` is "linear" (fp8 tiles when quantised), "expert" (fp4 or fp8 tiles), "rows" (an Engram
    table: fp8 with one scale per 32 columns of a row) or "plain" (never quantised).
    """

    shape: tuple[int, ...]
    group: str
    kind: Kind = "plain"
    dtype: str = "BF16"
    optional: bool = False


def part_of(name: str) -> Part:
    """Which part of the model tensor `name` belongs to: "target", "draft" or "vision"."""
    if name.startswith("mtp."):
        return "draft"
    return "vision" if name.startswith(("vision.", "aligner.", "image_")) else "target"


def entries(cfg: Config, parts: tuple[Part, ...] = PARTS) -> dict[str, Entry]:
    """The logical weights by name; see `Entry`."""
    result: dict[str, Entry] = {}
    if "target" in parts:
        result |= dict(_target(cfg))
    if "draft" in parts:
        for stage in range(cfg.num_nextn_predict_layers):
            result |= dict(_draft(cfg, stage))
    if "vision" in parts and dict(cfg.vision).get("num_hidden_layers", 0):
        result |= dict(_vision(cfg))
    return result


def _target(cfg: Config) -> Iterator[tuple[str, Entry]]:
    hidden = cfg.hidden_size
    yield "embed.weight", Entry((cfg.vocab_size, hidden), "embed")
    for layer in range(cfg.num_hidden_layers):
        base = f"layers.{layer}."
        yield from _block(cfg, base, cfg.n_routed_experts)
        yield from _long_range(cfg, base, layer)
        if layer in cfg.engram_layer_ids:
            yield from _engram(cfg, base, cfg.engram_layer_ids.index(layer))
    yield "norm.weight", Entry((hidden,), "final norm")
    yield "head.weight", Entry((cfg.vocab_size, hidden), "head")


def _block(cfg: Config, base: str, experts: int) -> Iterator[tuple[str, Entry]]:
    hidden, mixes = cfg.hidden_size, (cfg.hc_mult + 2) * cfg.hc_mult
    for norm in ("attn_norm", "ffn_norm"):
        yield f"{base}{norm}.weight", Entry((hidden,), "layer norms")
    for site in ("attn", "ffn"):
        width = cfg.hc_mult * hidden
        yield f"{base}hc_{site}_fn", Entry((mixes, width), "mHC", dtype="F32")
        yield f"{base}hc_{site}_base", Entry((mixes,), "mHC", dtype="F32")
        yield f"{base}hc_{site}_scale", Entry((3,), "mHC", dtype="F32")
    yield from _attention(cfg, base + "attn.")
    yield from _moe(cfg, base + "ffn.", experts)


def _attention(cfg: Config, base: str) -> Iterator[tuple[str, Entry]]:
    hidden, dim, heads = cfg.hidden_size, cfg.head_dim, cfg.num_attention_heads
    rank, groups = cfg.q_lora_rank, cfg.o_groups
    for name, shape in {
        "wq_a": (rank, hidden),
        "wq_b": (heads * dim, rank),
        "wkv": (dim, hidden),
        "wo_a": (groups * cfg.o_lora_rank, heads // groups * dim),
        "wo_b": (hidden, groups * cfg.o_lora_rank),
    }.items():
        yield f"{base}{name}.weight", Entry(shape, "attention", "linear")
    yield base + "q_norm.weight", Entry((rank,), "attention")
    yield base + "kv_norm.weight", Entry((dim,), "attention")
    yield base + "attn_sink", Entry((heads,), "attention", dtype="F32")


def _moe(cfg: Config, base: str, experts: int) -> Iterator[tuple[str, Entry]]:
    hidden, inter = cfg.hidden_size, cfg.moe_intermediate_size
    shapes = {"w1": (inter, hidden), "w2": (hidden, inter), "w3": (inter, hidden)}
    yield base + "gate.weight", Entry((experts, hidden), "gates")
    yield base + "gate.bias", Entry((experts,), "gates", dtype="F32")
    yield base + "gate.bias_vl", Entry((experts,), "gates", dtype="F32", optional=not cfg.vision)
    for expert in range(experts):
        for name, shape in shapes.items():
            weight = f"{base}experts.{expert}.{name}.weight"
            yield weight, Entry(shape, "routed experts", "expert")
    for name, shape in shapes.items():
        yield f"{base}shared_experts.{name}.weight", Entry(shape, "shared experts", "linear")


def _long_range(cfg: Config, base: str, layer: int) -> Iterator[tuple[str, Entry]]:
    hidden, dim, heads, width = cfg.hidden_size, cfg.head_dim, cfg.index_n_heads, cfg.index_head_dim
    if layer in cfg.kv_source_layer_ids:
        yield base + "attn.compressor.wkv.weight", Entry((dim, hidden), "compressors")
        yield base + "attn.compressor.norm.weight", Entry((dim,), "compressors")
        if cfg.ratios[layer] > 1:
            yield base + "attn.compressor.wgate.weight", Entry((dim, hidden), "compressors")
        yield base + "attn.indexer.wk.weight", Entry((width, dim), "indexers")
        yield base + "attn.indexer.k_norm.weight", Entry((width,), "indexers")
    if layer in cfg.index_source_layer_ids:
        shape = (heads * width, cfg.q_lora_rank)
        yield base + "attn.indexer.wq_b.weight", Entry(shape, "indexers", "linear")
        yield base + "attn.indexer.weights_proj.weight", Entry((heads, hidden), "indexers")


def _engram(cfg: Config, base: str, index: int) -> Iterator[tuple[str, Entry]]:
    hidden, width, streams = cfg.hidden_size, cfg.engram_head_dim, cfg.hc_mult
    table = (cfg.engram_num_embeddings[index], width)
    yield base + "engram.embed.weight", Entry(table, "Engram tables", "rows")
    shape = ((streams + 1) * hidden, cfg.engram_columns * width)
    yield base + "engram.wkv.weight", Entry(shape, "Engram projections", "linear")
    for name in ("q_weight", "k_weight"):
        yield f"{base}engram.{name}", Entry((streams, hidden), "Engram projections")


def _draft(cfg: Config, stage: int) -> Iterator[tuple[str, Entry]]:
    base, hidden, rank = f"mtp.{stage}.", cfg.hidden_size, cfg.dspark_markov_rank
    experts = cfg.dspark_n_routed_experts or cfg.n_routed_experts

    def draft(entry: Entry) -> Entry:
        return Entry(entry.shape, "DSpark", entry.kind, entry.dtype, entry.optional)

    for name, entry in _block(cfg, base, experts):
        yield name, draft(entry)
    if stage == 0:
        captured = len(cfg.dspark_target_layer_ids) * hidden
        yield base + "main_proj.weight", Entry((hidden, captured), "DSpark", "linear")
        yield base + "main_norm.weight", Entry((hidden,), "DSpark")
    if stage == cfg.num_nextn_predict_layers - 1:
        yield base + "norm.weight", Entry((hidden,), "DSpark")
        yield base + "markov_head.embed.weight", Entry((cfg.vocab_size, rank), "DSpark")
        yield base + "markov_head.head.weight", Entry((cfg.vocab_size, rank), "DSpark")
        yield base + "confidence_head.proj.weight", Entry((1, hidden + rank), "DSpark")


def _vision(cfg: Config) -> Iterator[tuple[str, Entry]]:
    raw, hidden, group = dict(cfg.vision), cfg.hidden_size, "vision"
    needed = ("hidden_size", "intermediate_size", "patch_size", "downsample_ratio")
    lost = [name for name in needed if name not in raw]
    if lost:
        raise CheckpointError(f"vision_config lacks {', '.join(lost)}: the vision shapes need them")
    width, inter, patch, merge = (int(raw[name]) for name in needed)
    shapes: dict[str, tuple[int, ...]] = {
        "vision.patch_embed.proj.weight": (width, 3 * patch * patch),
        "vision.patch_embed.proj.bias": (width,),
    }
    for block in range(int(raw["num_hidden_layers"])):
        base = f"vision.blocks.{block}."
        shapes |= {
            base + "norm1.weight": (width,),
            base + "attn.wqkv.weight": (3 * width, width),
            base + "attn.wqkv.bias": (3 * width,),
            base + "attn.wo.weight": (width, width),
            base + "attn.wo.bias": (width,),
            base + "norm2.weight": (width,),
            base + "mlp.w1.weight": (2 * inter, width),
            base + "mlp.w2.weight": (width, inter),
        }
    shapes |= {
        "vision.norm.weight": (width,),
        "aligner.w1.weight": (hidden, width * merge * merge),
        "aligner.w1.bias": (hidden,),
        "aligner.w2.weight": (hidden, hidden),
        "aligner.w2.bias": (hidden,),
        **{f"image_{name}": (hidden,) for name in ("start", "end", "newline")},
    }
    for name, shape in shapes.items():
        yield name, Entry(shape, group)
