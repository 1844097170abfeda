"""Which table rows a token reads: exact integer hashing of the last tokens' compressed ids.

Shapes: B batch, T tokens, L Engram layers, C columns. All arithmetic is int64 and never wraps:
multipliers are drawn so that every product stays below 2^63.
Source: docs/reference/model.md, "Engram"; constants are recomputed, none is stored.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dslearn.config import Config
from dslearn.errors import ConfigError, UsageError

DEAD = -1  # history mark of a position that hashing may not look through (an image slot)


def _is_prime(n: int) -> bool:
    """Miller-Rabin with bases that decide every n below 3.3e24."""
    small = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
    if n < 2 or any(n % p == 0 for p in small):
        return n in small
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in small:
        x = pow(base, odd, n)
        if x in (1, n - 1):
            continue
        for _ in range(twos - 1):
            x = x * x % n
            if x == n - 1:
                break
        else:
            return False
    return True


def bucket_primes(layers: int, sizes: int, heads: int, start: int) -> list[list[list[int]]]:
    """Bucket counts [layer][n-gram size][head]: for each size the next primes from `start` that
    no earlier head of any layer or size has taken."""
    used: set[int] = set()
    out: list[list[list[int]]] = []
    for _ in range(layers):
        rows: list[list[int]] = []
        for _ in range(sizes):
            candidate = start - 1
            row: list[int] = []
            while len(row) < heads:
                candidate += 1
                if candidate not in used and _is_prime(candidate):
                    used.add(candidate)
                    row.append(candidate)
            rows.append(row)
        out.append(rows)
    return out


def multipliers(layer: int, compressed_vocab: int, count: int = 4) -> list[int]:
    """Odd multipliers of one Engram layer, seeded by its layer id."""
    bound = ((2**63 - 1) // compressed_vocab) // 2
    rng = np.random.default_rng(10007 * layer)
    return [int(m) * 2 + 1 for m in rng.integers(0, bound, size=count, dtype=np.int64)]


class EngramHash:
    """Row ids of every Engram layer for a stretch of tokens.

    Args:
        cfg: names layers, sizes, heads and the expected row counts.
        token_map: int64 [vocab_size], token id to compressed id.
        pad_id: compressed id that stands in for a blocked look-back.

    Raises:
        ConfigError: row counts that the primes do not give, or a map of the wrong size.
    """

    def __init__(self, cfg: Config, token_map: Tensor, pad_id: int) -> None:
        self.token_map = token_map.to(torch.int64)
        self.pad_id = pad_id
        self.reach = cfg.engram_max_ngram_size - 1  # how many earlier tokens a hash reads
        highest, lowest = int(self.token_map.max()), int(self.token_map.min())
        compressed = cfg.engram_compressed_vocab_size or max(highest, pad_id) + 1
        if not 0 <= lowest <= highest < compressed or not 0 <= pad_id < compressed:
            raise ConfigError(
                f"the Engram token map spans {lowest}..{highest} with pad {pad_id}: ids must be "
                f"0..{compressed - 1} (engram_compressed_vocab_size); is this the right tokenizer?"
            )
        layers = cfg.engram_layer_ids
        primes = bucket_primes(len(layers), self.reach, cfg.engram_n_heads, cfg.engram_vocab_size)
        sums = tuple(sum(map(sum, layer)) for layer in primes)
        if sums != cfg.engram_num_embeddings:
            raise ConfigError(
                f"engram_num_embeddings={cfg.engram_num_embeddings}: the bucket primes from "
                f"engram_vocab_size={cfg.engram_vocab_size} add up to {sums}"
            )
        self.primes = torch.tensor(primes, device="cpu")  # [L, sizes, heads]
        flat = self.primes.flatten(1)
        self.offsets = (flat.cumsum(1) - flat).view_as(self.primes)
        self.factors = torch.tensor(
            [multipliers(layer, compressed, self.reach + 1) for layer in layers], device="cpu"
        )  # [L, reach + 1]

    def compress(self, ids: Tensor, dead: Tensor | None = None) -> Tensor:
        """Token ids [B, T] -> compressed ids [B, T], DEAD where `dead` [B, T] is True."""
        compressed = self.token_map[ids]
        return compressed if dead is None else compressed.masked_fill(dead, DEAD)

    def rows(self, history: Tensor) -> Tensor:
        """history [B, reach + T] compressed ids, DEAD before the start -> row ids [B, T, L, C].

        Raises UsageError on an id outside the compressed vocabulary: a negative id would read
        the end of the table.
        """
        if bool((history < DEAD).any()):
            raise UsageError(
                f"compressed id {int(history.min())}: ids are 0 and up, {DEAD} marks a dead slot"
            )
        length = history.shape[1] - self.reach
        current = history[:, self.reach :]
        blocked = current == DEAD
        mixed = current.masked_fill(blocked, self.pad_id).unsqueeze(-1) * self.factors[:, 0]
        out = []
        for back in range(1, self.reach + 1):
            token = history[:, self.reach - back : self.reach - back + length]
            blocked = blocked | (token == DEAD)
            token = token.masked_fill(blocked, self.pad_id)
            mixed = mixed ^ (token.unsqueeze(-1) * self.factors[:, back])  # [B, T, L]
            size = back - 1
            out.append(mixed.unsqueeze(-1) % self.primes[:, size] + self.offsets[:, size])
        return torch.cat(out, dim=-1)
