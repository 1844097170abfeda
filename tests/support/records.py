"""Cache records decoded apart from dslearn: by ml_dtypes and shapes alone; and random ones."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from torch import Tensor

from dslearn.formats.records import Kind, Record
from tests.support.kernels import matrix


def packed(seed: int, rows: int, dim: int, kind: Kind, fp8_max: int = 448) -> Tensor:
    """Records of normal values [rows, S]."""
    return Record(kind, dim, fp8_max).pack(matrix(seed, rows, dim))


def values(raw: np.ndarray, kind: str, dim: int) -> np.ndarray:
    """Records uint8 [..., S] as float64 [..., dim]."""
    raw = np.ascontiguousarray(raw)
    width = dim if kind == "window" else dim // 2
    block = 16 if kind == "compressed" else 32
    code, scale = raw[..., :width], np.ascontiguousarray(raw[..., width:])
    if kind != "window":
        code = np.stack([code & 15, code >> 4], -1).reshape(*raw.shape[:-1], dim)
        number = code.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    else:
        number = np.ascontiguousarray(code).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    read = ml_dtypes.float8_e4m3fn if kind == "compressed" else ml_dtypes.float8_e8m0fnu
    return number * np.repeat(scale.view(read).astype(np.float64), block, -1)
