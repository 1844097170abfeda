"""What one decode step of the released model costs, kernel by kernel and layer by layer: modelled.

    python -m benchmarks.layer_budget [--write]

Six rows (a token and five drafts) at position 4096, two cores, without launches; nothing is
measured (docs/performance.md). Every width is the released one, and nothing is sharded but the
routed experts: six of 384 are here, all of them active. "Of the limit" is the larger share of HBM's
rate and of the 16-bit peak. With --write, the three tables of docs/performance.md.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from benchmarks.layer_parts import PARTS, RELEASED
from benchmarks.reference_kernels import PAGE, lines, replaced
from dslearn.sim import cost

Rows = Iterator[tuple[str, ...]]


class Cost(NamedTuple):
    """Modelled time of a part, and its shares of HBM's rate and of the 16-bit peak."""

    us: float
    hbm: float
    pe: float

    @property
    def limit(self) -> float:
        """The larger of the two shares."""
        return max(self.hbm, self.pe)


READ = ["hc_mixes", "hc_collapse", "rmsnorm 5120"]
QUERIES = [
    *("fp8_folded, wq_a and wkv 5120 x 1792", "rmsnorm 1280", "rmsnorm 512"),
    *("fp8_folded, wq_b 1280 x 32768", "rope, 64 heads and the key", "kv_store, window"),
]
OUT = ["rope, back", "grouped, wo_a fp8 8 x 4096 x 1024", "hc_attn_out, wo_b 8192 x 5120"]
EXPERTS = [
    *(*READ, "plain_linear, router bf16 5120 x 384"),
    *("shared_expert", "experts, 6 of 6 active", "hc_expand"),
]
ENTRY = [
    *("rope, an entry", "kv_store, compressed", "plain_linear, indexer wk bf16 512 x 128"),
    *("rmsnorm 128", "rope, an index key", "kv_store, index"),
]
PAIRS = ["plain_linear, compressor bf16 5120 x 1024", "compress_pool", *ENTRY]
SINGLES = ["plain_linear, compressor bf16 5120 x 512", "rmsnorm 512", *ENTRY]
INDEXER = [
    *("fp8_folded, indexer wq_b 1280 x 4096", "rope, index queries"),
    "plain_linear, weights_proj bf16 5120 x 32",
]
ATTEND = "sparse_attn, 512 + 128"
LONG: dict[str, list[str]] = {  # what a role adds between queries and output
    "local": ["sparse_attn, window only"],
    "full": [*PAIRS, *INDEXER, "index_score, 2048", "index_topk, 512 of 2048", ATTEND],
    "reuse": [ATTEND],
    "full+candidate": [
        *(*SINGLES, *INDEXER, "index_score, 4096", "index_topk, 512 of 4096"),
        *("candidate_blocks, 256 of 512", ATTEND),
    ],
    "reindex": [*INDEXER, "index_score, 4096", "index_topk, in candidates", ATTEND],
}
ENGRAM = ["engram_kv 6144 x 25600", "engram_gate"]
FUSED = {  # one kernel instead of several
    "hc_attn_out, wo_b 8192 x 5120": ("fp8_folded, wo_b 8192 x 5120", "hc_expand"),
    "fp8_folded, wq_a and wkv 5120 x 1792": (
        "fp8_folded, wq_a 5120 x 1280",
        "fp8_folded, wkv 5120 x 512",
    ),
    "rope, 64 heads and the key": ("rope, 64 heads", "rope, the key"),
}


def layer(role: str) -> list[str]:
    """The parts of a layer of `role`, in order, without Engram."""
    return [*READ, *QUERIES, *LONG[role], *OUT, *EXPERTS]


@cache
def modelled(part: str) -> Cost:
    """Simulate and model one part on two cores."""
    kernel, arguments = PARTS[part]()
    found = cost.profile(kernel[2], *arguments)
    return Cost(found.us, found.hbm_share, found.pe_share)


def total(parts: list[str]) -> Cost:
    """Parts one after another: their time, and shares of it."""
    costs = [modelled(part) for part in parts]
    us = sum(c.us for c in costs)
    return Cost(us, *(sum(getattr(c, s) * c.us for c in costs) / us for s in ("hbm", "pe")))


def step() -> Counter[str]:
    """Every part of a step of all layers, and how often it runs."""
    parts: Counter[str] = Counter()
    for role in RELEASED.roles:
        parts.update(layer(role))
    for _ in RELEASED.engram_layer_ids:
        parts.update(ENGRAM)
    return parts


def kernels() -> Rows:
    """Rows: part, time, shares, launches and time in a step, most first."""
    yield "kernel", "µs", "of HBM", "of PE", "of the limit", "in a step", "ms of a step"
    counts = step()
    for part in sorted(counts, key=lambda p: -counts[p] * modelled(p).us):
        c, n = modelled(part), counts[part]
        shares = (f"{share:.0%}" for share in (c.hbm, c.pe, c.limit))
        yield part, f"{c.us:.1f}", *shares, str(n), f"{n * c.us / 1e3:.2f}"


def roles() -> Rows:
    """Rows: role, its layers, kernels of one, time, shares; Engram and the whole step last."""
    yield "layer", "in the model", "kernels", "µs", "of HBM", "of PE", "of the limit"

    def row(name: str, count: int, parts: list[str]) -> tuple[str, ...]:
        c = total(parts)
        limit = sum(modelled(p).limit * modelled(p).us for p in parts) / c.us
        shares = (f"{share:.0%}" for share in (c.hbm, c.pe, limit))
        return name, str(count), str(len(parts)), f"{c.us:.0f}", *shares

    for role, count in Counter(RELEASED.roles).items():
        yield row(role, count, layer(role))
    yield row("Engram, before a layer", len(RELEASED.engram_layer_ids), ENGRAM)
    yield row("all layers", 1, list(step().elements()))


def fusions() -> Rows:
    """Rows: what is one kernel, its time, what it replaces, their time, what that saves."""
    yield "one kernel", "µs", "instead of", "µs", "saves µs"
    for part, others in FUSED.items():
        one, many = modelled(part).us, sum(modelled(other).us for other in others)
        yield part, f"{one:.1f}", "; ".join(others), f"{many:.1f}", f"{many - one:.1f}"


def main() -> None:
    """Model and print; with --write, into docs/performance.md."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write docs/performance.md")
    options = parser.parse_args()
    print("Modelled, not measured.")
    tables = {"layer budget": roles(), "step budget": kernels(), "fusions": fusions()}
    for name, rows in tables.items():
        if options.write:
            page = PAGE.read_text(encoding="utf-8")
            PAGE.write_text(replaced(page, name, rows), encoding="utf-8")
            print(f"{PAGE.name}: {name} is written")
        else:
            print(f"\n{name}\n\n" + "\n".join(lines(rows)), flush=True)


if __name__ == "__main__":
    main()
