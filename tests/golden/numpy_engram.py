"""Engram of the NumPy twin: compressed token ids, hash constants, hashed rows, the gated value.

Legend: T tokens, N largest n-gram, h heads, C = (N-1)*h hash columns (n-gram size major),
S streams, d hidden. All hashing is done with Python integers, which cannot overflow.
"""

from __future__ import annotations

import unicodedata

import numpy as np
from numpy_checkpoint import Weights, inverse_rms, sigmoid

F32 = np.float32
INT64_MAX = 2**63 - 1
# The code points with the Unicode property White_Space. str.strip() also strips 0x1c..0x1f.
WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)


def normalize(text: str) -> str:
    """NFKC, NFD, no accents, lower case, one space for a run of blanks, no blanks at the ends.

    U+E000 stands in for a text that is a single space while the ends are stripped.
    """
    text = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    text = "".join(c for c in text if not unicodedata.category(c).startswith("M"))
    text = "".join(c.lower() for c in text)
    collapsed = ""
    for c in text:
        blank = c in " \t\r\n"
        if not (blank and collapsed.endswith(" ")):
            collapsed += " " if blank else c
    kept = "\ue000" if collapsed == " " else collapsed
    return kept.strip(WHITE_SPACE).replace("\ue000", " ")


def compressed_token_map(tokenizer: object) -> np.ndarray:
    """Compressed id of every token of a `tokenizers.Tokenizer`, int64, numbered as first seen."""
    first_seen: dict[str, int] = {}
    new_ids = []
    for token in range(tokenizer.get_vocab_size(with_added_tokens=True)):
        text = tokenizer.decode([token], skip_special_tokens=False)
        broken = "\ufffd" in text
        key = tokenizer.id_to_token(token) if broken else normalize(text) or text
        new_ids.append(first_seen.setdefault(key, len(first_seen)))
    return np.array(new_ids, np.int64)


def is_prime(n: int) -> bool:
    """Trial division."""
    return n > 1 and all(n % f for f in range(2, int(n**0.5) + 1))


def bucket_primes(layers: int, sizes: int, heads: int, vocab_size: int) -> list[list[list[int]]]:
    """[layer][n-gram size][head]: the next prime >= vocab_size that no bucket before has taken."""
    used: set[int] = set()
    primes: list[list[list[int]]] = []
    for _ in range(layers):
        primes.append([])
        for _ in range(sizes):
            row: list[int] = []
            candidate = vocab_size - 1
            while len(row) < heads:
                candidate += 1
                if candidate not in used and is_prime(candidate):
                    used.add(candidate)
                    row.append(candidate)
            primes[-1].append(row)
    return primes


def multipliers(layer_id: int, compressed_vocab: int, count: int) -> list[int]:
    """`count` odd factors for one layer, so small that factor * id stays below 2^63."""
    high = max(1, INT64_MAX // compressed_vocab // 2)
    drawn = np.random.default_rng(10007 * layer_id).integers(0, high, size=count, dtype=np.int64)
    return [2 * int(m) + 1 for m in drawn]


class EngramHash:
    """Rows of every Engram layer's table for a sequence of token ids.

    `token_map` maps token to compressed ids; `pad_id` is a *compressed* id.
    """

    def __init__(self, cfg: dict, token_map: np.ndarray, pad_id: int) -> None:
        self.layers = list(cfg["engram_layer_ids"])
        self.size = cfg["engram_max_ngram_size"]
        self.token_map, self.pad_id = np.asarray(token_map, np.int64), int(pad_id)
        known = int(max(self.token_map.max(), self.pad_id)) + 1
        vocab = cfg.get("engram_compressed_vocab_size") or known
        if known > vocab:
            raise ValueError(f"token map with {known} compressed ids, the config has {vocab}")
        self.primes = bucket_primes(
            len(self.layers), self.size - 1, cfg["engram_n_heads"], cfg["engram_vocab_size"]
        )
        sums = [sum(map(sum, layer)) for layer in self.primes]
        if sums != list(cfg["engram_num_embeddings"]):
            raise ValueError(f"engram_num_embeddings {cfg['engram_num_embeddings']}: want {sums}")
        self.factors = [multipliers(layer, vocab, self.size) for layer in self.layers]

    def look_back(self, ids: list[int], dead: list[bool], p: int) -> list[int]:
        """The N compressed ids at p, p-1, ...: pad from the first dead or missing token on."""
        found, blocked = [], False
        for s in range(self.size):
            blocked = blocked or p - s < 0 or dead[p - s]
            found.append(self.pad_id if blocked else ids[p - s])
        return found

    def row(self, layer: int, ids: list[int]) -> list[int]:
        """The C table rows of the layer with this ordinal, from the N ids of `look_back`."""
        rows, offset, mixed = [], 0, ids[0] * self.factors[layer][0]
        for s in range(1, self.size):
            mixed ^= ids[s] * self.factors[layer][s]
            if not 0 <= mixed <= INT64_MAX:
                raise OverflowError(f"hash {mixed} of compressed ids {ids} leaves int64")
            for prime in self.primes[layer][s - 1]:
                rows.append(mixed % prime + offset)
                offset += prime
        return rows

    def compressed(self, ids: np.ndarray, dead: np.ndarray) -> np.ndarray:
        """Compressed ids [T]; the ids at dead positions are not looked up."""
        live = np.where(dead, 0, ids)
        if live.min() < 0 or live.max() >= len(self.token_map):
            raise ValueError(f"token ids must lie in 0..{len(self.token_map) - 1}: {ids}")
        return np.where(dead, self.pad_id, self.token_map[live])

    def __call__(self, ids: np.ndarray, dead: np.ndarray) -> np.ndarray:
        """[T] token ids and dead marks to rows [layers, T, C] int64."""
        small, marks = self.compressed(ids, dead).tolist(), np.asarray(dead).tolist()
        contexts = [self.look_back(small, marks, p) for p in range(len(small))]
        layers = range(len(self.layers))
        return np.array([[self.row(k, c) for c in contexts] for k in layers], np.int64)


def engram_layer(
    weights: Weights, name: str, streams: np.ndarray, rows: np.ndarray, dead: np.ndarray, eps: float
) -> tuple[np.ndarray, np.ndarray]:
    """Streams [T, S, d] plus the gated value of the hashed rows [T, C]; also the gates [T, S]."""
    tokens, count, hidden = streams.shape
    embedded = weights.rows(f"{name}.embed", rows).reshape(tokens, -1)
    key_value = weights.linear(f"{name}.wkv", embedded)
    key = key_value[:, : count * hidden].reshape(tokens, count, hidden)
    value = key_value[:, count * hidden :]
    factor = weights.plain(f"{name}.q_weight") * weights.plain(f"{name}.k_weight")
    dot = np.sum(streams.astype(np.float64) * factor * key, -1).astype(F32)
    a = dot * inverse_rms(streams, eps) * inverse_rms(key, eps) * F32(hidden**-0.5)
    gate = sigmoid(np.copysign(np.sqrt(np.maximum(np.abs(a), F32(1e-6))), a))
    gate = np.where(np.asarray(dead)[:, None], F32(0), gate)
    return streams + gate[..., None] * value[:, None, :], gate
