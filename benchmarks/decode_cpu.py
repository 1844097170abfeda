"""Greedy decode on the CPU: dslearn's tiny beside transformers' `deepseek_v4` of the same size.

    python benchmarks/decode_cpu.py [--threads 2] [--rounds 3]

Both run fp32, batch 1, 64 prompt tokens and 128 new ones, in turns, in one process; the best round
of each counts. transformers has no V4.1, so its model is V4 with the same layers, hidden size,
heads, head size, experts, streams, window and index heads (random weights: the time of a step does
not depend on them). Layers that select entries in tiny are CSA layers there, layers that reuse a
selection are HCA layers, the local layer is a sliding-window layer.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

import dslearn
from dslearn.config import Config
from dslearn.engine import LM

PROMPT, NEW = 64, 128


def other_model(cfg: Config) -> DeepseekV4ForCausalLM:
    """transformers' V4 with the sizes of `cfg`."""
    kinds = {"local": 0, "reuse": 128}
    torch.manual_seed(0)
    other = DeepseekV4Config(
        vocab_size=cfg.vocab_size,
        hidden_size=cfg.hidden_size,
        moe_intermediate_size=cfg.moe_intermediate_size,
        num_hidden_layers=cfg.num_hidden_layers,
        num_attention_heads=cfg.num_attention_heads,
        head_dim=cfg.head_dim,
        qk_rope_head_dim=cfg.qk_rope_head_dim,
        q_lora_rank=cfg.q_lora_rank,
        o_groups=cfg.o_groups,
        o_lora_rank=cfg.o_lora_rank,
        n_routed_experts=cfg.n_routed_experts,
        num_experts_per_tok=cfg.num_experts_per_tok,
        hc_mult=cfg.hc_mult,
        hc_sinkhorn_iters=cfg.hc_sinkhorn_iters,
        sliding_window=cfg.sliding_window,
        index_n_heads=cfg.index_n_heads,
        index_head_dim=cfg.index_head_dim,
        index_topk=cfg.index_topk,
        compress_ratios=[kinds.get(role, 4) for role in cfg.roles],
        num_hash_layers=0,
        max_position_embeddings=cfg.max_position_embeddings,
        eos_token_id=None,
        pad_token_id=cfg.pad_token_id,
    )
    return DeepseekV4ForCausalLM(other).eval()


def ours(model: LM, ids: torch.Tensor) -> None:
    """Prefill and decode NEW tokens greedily."""
    state = model.new_state(1, PROMPT + NEW)
    logits = model.forward(ids, state)
    for _ in range(NEW - 1):
        token = int(logits[0, -1].argmax())
        logits = model.forward([[token]], state)


def theirs(model: DeepseekV4ForCausalLM, ids: torch.Tensor) -> None:
    """The same through `generate(use_cache=True)`."""
    with torch.no_grad():
        model.generate(ids, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, use_cache=True)


def best(run: Callable[[], None], seconds: float, clock: Callable[[], float]) -> float:
    """The smaller of `seconds` and the time of one run."""
    begin = clock()
    run()
    return min(seconds, clock() - begin)


def main() -> None:
    """Time all three in turns and print tokens per second and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--cpu-time", action="store_true", help="count CPU time on a busy machine")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clock = time.process_time if args.cpu_time else time.perf_counter
    plain = dslearn.load(args.model, numerics=dslearn.Numerics(activations=False))
    quantised = dslearn.load(args.model)
    other = other_model(plain.config)
    ids = torch.arange(3, 3 + PROMPT)[None]
    runs: dict[str, Callable[[], None]] = {
        "transformers deepseek_v4, fp32": lambda: theirs(other, ids),
        "dslearn tiny, activations plain": lambda: ours(plain, ids),
        "dslearn tiny, activations quantised": lambda: ours(quantised, ids),
    }
    seconds = dict.fromkeys(runs, float("inf"))
    for _ in range(args.rounds + 1):  # the first round warms up
        for name, run in runs.items():
            seconds[name] = best(run, seconds[name], clock)
    base = seconds["transformers deepseek_v4, fp32"]
    for name, value in seconds.items():
        print(f"{name:38s} {NEW / value:8.1f} tokens/s   {base / value:5.2f}x")


if __name__ == "__main__":
    main()
