"""A checkpoint directory read with nothing but json and NumPy, and linears on its tensors.

Legend: T tokens, `in`/`out` a linear's sides. Tensor names are the checkpoint's own; a tensor
`X.weight` is stored quantised exactly when `X.scale` stands beside it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import numpy_formats as formats

F32 = np.float32
DTYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    "I8": np.int8,
    "U8": np.uint8,
    "I32": np.int32,
    "I64": np.int64,
}
# The linears that the released checkpoint stores in fp8 or fp4 and feeds quantised inputs;
# wo_a is stored in fp8 too, but its input stays as it is.
RELEASED_QUANTISED = re.compile(
    r"layers\.\d+\.(attn\.(wq_a|wq_b|wkv|wo_b|indexer\.wq_b)|engram\.wkv"
    r"|ffn\.(shared_experts|experts\.\d+)\.w[123])"
)


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """One safetensors file: 8 bytes of header length, a JSON header, then the tensors' bytes."""
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:start])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        flat = np.frombuffer(raw[start + first : start + last], DTYPES[entry["dtype"]])
        tensors[name] = flat.reshape(entry["shape"])
    return tensors


def read_directory(directory: Path) -> tuple[dict, dict[str, np.ndarray]]:
    """config.json and every tensor, by the index where there is one."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    index = directory / "model.safetensors.index.json"
    if not index.exists():
        return config, read_safetensors(directory / "model.safetensors")
    where = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    shards = {file: read_safetensors(directory / file) for file in sorted(set(where.values()))}
    return config, {name: shards[file][name] for name, file in where.items()}


def text_config(config: dict) -> dict:
    """The text model's fields, from a nested `text_config` or from a flat file."""
    return dict(config.get("text_config") or config)


def weight_tile(config: dict) -> tuple[int, int]:
    """Rows and columns that share one fp8 scale: `weight_block_size`, 32x32 when not given."""
    found = config.get("quantization_config") or text_config(config).get("quantization_config")
    rows, columns = (found or {}).get("weight_block_size") or (32, 32)
    return rows, columns


class Weights:
    """The tensors by name, in float32, and linears that quantise their inputs where they should."""

    def __init__(
        self,
        tensors: dict[str, np.ndarray],
        tile: tuple[int, int],
        activations: bool | None,
        fp8_max: int,
    ) -> None:
        self.tensors, self.tile = tensors, tile
        self.activations, self.fp8_max = activations, fp8_max
        self.decoded: dict[str, np.ndarray] = {}

    def plain(self, name: str) -> np.ndarray:
        """A tensor that is never quantised, in float32."""
        if name not in self.tensors:
            raise KeyError(f"the checkpoint has no tensor {name!r}")
        return self.tensors[name].astype(F32)

    def matrix(self, name: str) -> np.ndarray:
        """`name.weight` [out, in] in float32, dequantised when `name.scale` exists."""
        if name not in self.decoded:
            self.decoded[name] = self._decode(name)
        return self.decoded[name]

    def _decode(self, name: str) -> np.ndarray:
        if f"{name}.scale" not in self.tensors:
            return self.plain(f"{name}.weight")
        weight, scale = self.tensors[f"{name}.weight"], self.tensors[f"{name}.scale"]
        if weight.dtype in (np.int8, np.uint8):
            return formats.dequantize_fp4(weight, scale)
        return formats.dequantize_tiles(weight, scale, self.tile)

    def rows(self, name: str, ids: np.ndarray) -> np.ndarray:
        """Rows of a table, [..., D] float32; a quantised table has one scale per D/n columns."""
        picked = self.tensors[f"{name}.weight"][ids].astype(F32)
        if f"{name}.scale" not in self.tensors:
            return picked
        scale = self.tensors[f"{name}.scale"][ids].astype(F32)
        return picked * np.repeat(scale, picked.shape[-1] // scale.shape[-1], -1)

    def quantises_input(self, name: str) -> bool:
        """Whether the linear `name` sees its input rounded to fp8."""
        if self.activations is None:
            return f"{name}.scale" in self.tensors and not name.endswith("attn.wo_a")
        return self.activations and RELEASED_QUANTISED.fullmatch(name) is not None

    def linear(self, name: str, x: np.ndarray) -> np.ndarray:
        """x [T, in] through `name`, [T, out] float32: float64 sums, rounded once."""
        if self.quantises_input(name):
            x = formats.fake_fp8(x, self.tile[1], self.fp8_max)
        return matmul(x, self.matrix(name).T)


def matmul(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x @ y summed in float64, rounded once to float32."""
    return (x.astype(np.float64) @ y.astype(np.float64)).astype(F32)


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis, float32."""
    return (x * inverse_rms(x, eps)[..., None] * weight).astype(F32)


def inverse_rms(x: np.ndarray, eps: float) -> np.ndarray:
    """1 / sqrt(mean(x^2) + eps) over the last axis, float32; eps 1e-20 needs the wide sum."""
    mean = np.mean(np.square(x.astype(np.float64)), -1)
    return (1 / np.sqrt(mean + eps)).astype(F32)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)) without overflow, float32."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small)).astype(F32)


def softplus(x: np.ndarray) -> np.ndarray:
    """log(1 + exp(x)) without overflow or loss, float32."""
    return (np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))).astype(F32)


def top_k(scores: np.ndarray, k: int) -> np.ndarray:
    """Indices of the k largest scores of a vector, largest first, ties to the lowest index."""
    return np.argsort(-scores, kind="stable")[:k]
