"""Every kernel of a decode step of the released model, with arguments of its sizes.

`layer_budget` models them: six rows (a token and five drafts) at position 4096, every width as
released, nothing sharded but the routed experts.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks import attention_kernels as attention
from benchmarks import expert_kernels
from dslearn import profiling
from dslearn.config import Config
from dslearn.kernels import (
    compress_pool,
    engram_gate,
    hc_attn_out,
    hc_collapse,
    hc_expand,
    hc_mixes,
    index_score,
    index_topk,
    kv_store,
    rmsnorm,
    rope,
    sparse_attn,
)

ROOT = Path(__file__).parents[1]
RELEASED = Config.from_file(ROOT / "tests" / "data" / "v4_1_flash_config.json")
ROWS, CONTEXT = 6, 4096
D, S = RELEASED.hidden_size, RELEASED.hc_mult
EPS = RELEASED.rms_norm_eps
HEADS, DIM = RELEASED.num_attention_heads, RELEASED.head_dim
LORA, INDEX_HEADS, INDEX_DIM = (
    RELEASED.q_lora_rank,
    RELEASED.index_n_heads,
    RELEASED.index_head_dim,
)
Launch = tuple[Any, tuple[Any, ...]]  # a kernel and its arguments


def fp32(*shape: int) -> torch.Tensor:
    """Normal values, fp32."""
    return attention.normal(*shape, dtype=torch.float32)


def streams() -> torch.Tensor:
    """The residual streams of all rows."""
    return attention.normal(ROWS, S, D)


def norm(width: int) -> Launch:
    """RMSNorm of rows of `width`."""
    return rmsnorm.rmsnorm, (attention.normal(ROWS, width), attention.normal(width), EPS)


def folded(inputs: int, outputs: int) -> Launch:
    """An fp8 product for few rows."""
    return profiling.named("fp8_folded", [f"{ROWS}x{inputs}x{outputs}"])


def plain(inputs: int, outputs: int) -> Launch:
    """A bf16 product for few rows."""
    return profiling.named("plain_linear", [f"{ROWS}x{inputs}x{outputs}"])


def rotated(heads: int, dim: int) -> Launch:
    """The rotation of `heads` heads, or back."""
    turns = fp32(ROWS, RELEASED.qk_rope_head_dim)
    return rope.rope, (attention.normal(ROWS, heads, dim), turns, turns)


def stored(kind: attention.Kind, dim: int) -> Launch:
    """Records of all rows, written to a pool."""
    pool = torch.zeros(200, attention.Record(kind, dim).stride, dtype=torch.uint8)
    slots = torch.arange(ROWS).int()[:, None]
    arguments = attention.normal(ROWS, dim), slots, torch.ones(ROWS, 1), pool, kind, 224
    return kv_store.kv_store, arguments


def mixed() -> Launch:
    """The coefficients of a sublayer."""
    numbers = S * (S + 2)
    fn = fp32(128, S * D // 128, numbers)
    return hc_mixes.hc_mixes, (streams(), fn, fp32(numbers), fp32(3), EPS, RELEASED.hc_eps)


def written() -> tuple[torch.Tensor, ...]:
    """The streams, and what a write needs beside its y."""
    return streams(), fp32(ROWS, S), fp32(ROWS, S, S)


def projected() -> Launch:
    """wo_b and the write in one kernel."""
    _, (x, weight, power, _) = folded(RELEASED.o_groups * RELEASED.o_lora_rank, D)
    return hc_attn_out.hc_attn_out, (x, weight, power, *written())


def scored(ratio: int) -> Launch:
    """Index scores of every entry."""
    keys = attention.packed(CONTEXT // ratio, INDEX_DIM, "index")
    q, weights = attention.normal(ROWS, INDEX_HEADS, INDEX_DIM), fp32(ROWS, INDEX_HEADS)
    return index_score.index_score, (q, weights, keys, True, True)


def selected(ratio: int, filtered: bool = False) -> Launch:
    """The best entries, perhaps inside candidate blocks only."""
    entries = CONTEXT // ratio
    blocks = torch.ones(ROWS, entries // RELEASED.candidate_block_size, dtype=torch.uint8)
    counts = torch.full((ROWS, 1), entries).int()
    arguments = fp32(ROWS, entries), counts, RELEASED.index_topk
    return index_topk.index_topk, (*arguments, blocks) if filtered else arguments


def candidates() -> Launch:
    """The candidate blocks; half of them, since all would be no search."""
    size = RELEASED.candidate_block_size
    counts = torch.full((ROWS, 1), CONTEXT).int()
    return index_topk.candidate_blocks, (fp32(ROWS, CONTEXT), counts, size, CONTEXT // size // 2)


def pooled() -> Launch:
    """Tokens to latents of pairs."""
    u, g, weight = fp32(1, ROWS, DIM), fp32(1, ROWS, DIM), attention.normal(1, DIM)
    start, lengths = torch.tensor([[CONTEXT]]).int(), torch.tensor([[ROWS]]).int()
    waiting = fp32(1, DIM), fp32(1, DIM)
    return compress_pool.compress_pool, (u, weight, EPS, True, g, start, lengths, *waiting)


def titled(title: str) -> Launch:
    """A case of `expert_kernels` by its title."""
    every = [*expert_kernels.projections(ROWS), *expert_kernels.routed(ROWS)]
    return next((kernel, arguments) for name, kernel, arguments, _ in every if name == title)


PARTS: dict[str, Callable[[], Launch]] = {
    "hc_mixes": mixed,
    "hc_collapse": lambda: (hc_collapse.hc_collapse, (streams(), fp32(ROWS, S))),
    "hc_expand": lambda: (hc_expand.hc_expand, (attention.normal(ROWS, D), *written())),
    "hc_attn_out, wo_b 8192 x 5120": projected,
    "rmsnorm 5120": lambda: norm(D),
    "rmsnorm 1280": lambda: norm(LORA),
    "rmsnorm 512": lambda: norm(DIM),
    "rmsnorm 128": lambda: norm(INDEX_DIM),
    "fp8_folded, wq_a and wkv 5120 x 1792": lambda: folded(D, LORA + DIM),
    "fp8_folded, wq_b 1280 x 32768": lambda: folded(LORA, HEADS * DIM),
    "rope, 64 heads and the key": lambda: rotated(HEADS + 1, DIM),
    "kv_store, window": lambda: stored("window", DIM),
    "sparse_attn, window only": lambda: (sparse_attn.sparse_attn, attention.attention(ROWS, 0)),
    "sparse_attn, 512 + 128": lambda: (
        sparse_attn.sparse_attn,
        attention.attention(ROWS, RELEASED.index_topk),
    ),
    "rope, back": lambda: rotated(HEADS, DIM),
    "grouped, wo_a fp8 8 x 4096 x 1024": lambda: titled("grouped fp8 8 x 4096 x 1024"),
    "plain_linear, compressor bf16 5120 x 1024": lambda: plain(D, 2 * DIM),
    "plain_linear, compressor bf16 5120 x 512": lambda: plain(D, DIM),
    "compress_pool": pooled,
    "rope, an entry": lambda: rotated(1, DIM),
    "kv_store, compressed": lambda: stored("compressed", DIM),
    "plain_linear, indexer wk bf16 512 x 128": lambda: plain(DIM, INDEX_DIM),
    "rope, an index key": lambda: rotated(1, INDEX_DIM),
    "kv_store, index": lambda: stored("index", INDEX_DIM),
    "fp8_folded, indexer wq_b 1280 x 4096": lambda: folded(LORA, INDEX_HEADS * INDEX_DIM),
    "rope, index queries": lambda: rotated(INDEX_HEADS, INDEX_DIM),
    "plain_linear, weights_proj bf16 5120 x 32": lambda: plain(D, INDEX_HEADS),
    "index_score, 2048": lambda: scored(2),
    "index_score, 4096": lambda: scored(1),
    "index_topk, 512 of 2048": lambda: selected(2),
    "index_topk, 512 of 4096": lambda: selected(1),
    "index_topk, in candidates": lambda: selected(1, filtered=True),
    "candidate_blocks, 256 of 512": candidates,
    "plain_linear, router bf16 5120 x 384": lambda: plain(D, RELEASED.n_routed_experts),
    "shared_expert": lambda: titled("shared_expert"),
    "experts, 6 of 6 active": lambda: titled("experts, 6 of 6 active"),
    "engram_kv 6144 x 25600": lambda: titled("engram_kv 6144 x 25600"),
    "engram_gate": lambda: (
        engram_gate.engram_gate,
        (streams(), attention.normal(ROWS, (S + 1) * D), fp32(S, D), EPS),
    ),
    # not in a step: what the fused ones would be instead
    "fp8_folded, wo_b 8192 x 5120": lambda: folded(RELEASED.o_groups * RELEASED.o_lora_rank, D),
    "fp8_folded, wq_a 5120 x 1280": lambda: folded(D, LORA),
    "fp8_folded, wkv 5120 x 512": lambda: folded(D, DIM),
    "rope, 64 heads": lambda: rotated(HEADS, DIM),
    "rope, the key": lambda: rotated(1, DIM),
}
