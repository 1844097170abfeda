"""Engram of one token: `dslearn.model.engram` and `engram_hash` in NumPy.

Shapes: L Engram layers, C columns = (n-gram sizes) x (hash heads), S streams, d hidden.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from dslearn.model.engram import Engram
from dslearn.model.engram_hash import DEAD, EngramHash
from dslearn.model.state import State
from dslearn.model.step.parts import Row, linear, matrix


def table_rows(hashing: EngramHash, token: int, position: int, state: State) -> NDArray[np.int64]:
    """Row ids [L, C] of a token, which joins the history: `Model._engram_rows`."""
    reach, history = hashing.reach, state.history.numpy()[0]
    history[position + reach] = hashing.token_map[token]
    recent = history[position : position + reach + 1][::-1]  # this token first
    blocked = np.logical_or.accumulate(recent == DEAD)
    terms = np.where(blocked, hashing.pad_id, recent)[:, None] * hashing.factors.numpy().T
    mixed = np.bitwise_xor.accumulate(terms)[1:].T  # [L, sizes]
    rows = mixed[:, :, None] % hashing.primes.numpy() + hashing.offsets.numpy()
    return rows.reshape(len(rows), -1)


def engram(layer: Engram, h: Row, ids: NDArray[np.int64]) -> tuple[Row, Row]:
    """h [S, d], row ids [C] -> new h, gates [S]: `Engram.forward`."""
    (s, d), eps = h.shape, layer.eps
    kv = linear(layer.wkv, layer.embed(torch.from_numpy(ids)).numpy().reshape(-1))
    key, value = kv[: s * d].reshape(s, d), kv[s * d :]
    a = np.vecdot(h * matrix(layer.q_weight) * matrix(layer.k_weight), key)
    a /= np.sqrt(np.vecdot(h, h) / d + eps) * np.sqrt(np.vecdot(key, key) / d + eps)
    a *= np.float32(d**-0.5)
    logits = np.copysign(np.sqrt(np.maximum(np.abs(a), np.float32(1e-6))), a)
    gate = 1 / (1 + np.exp(-logits))
    return h + gate[:, None] * value, gate
