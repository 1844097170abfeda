"""Values from cache records: codes and scales by bit operations, one product at the end.

A record that holds a NaN scale decodes to zeros and is reported: what a masked key holds must not
spread, since zero times NaN is NaN. P partitions, one record each; n blocks of B values.
"""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl

from dslearn.kernels.record_write import layout


def _scales(raw: nl.NkiTensor, valid: nl.NkiTensor, nan: int) -> nl.NkiTensor:
    """Scale bytes [P, n] times 128: the words of ue8m0 as bf16, or of e4m3 where fp16 has it.

    NaN, and everything in a lane whose `valid` (P, 1) is 0, becomes 0.
    """
    known = nl.ndarray(shape=raw.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(
        dst=known, data=raw, op0=nl.not_equal, operand0=float(nan), op1=nl.multiply, operand1=raw
    )
    word = nl.ndarray(shape=raw.shape, dtype=nl.uint16, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=word, data=known, op0=nl.multiply, operand0=128.0, op1=nl.multiply, operand1=valid
    )
    return word


def poisoned(raw: nl.NkiTensor, kind: str, dim: int) -> nl.NkiTensor:
    """(P, 1) fp32: 1 where a record [P, S] has a NaN scale."""
    _, data, width = layout(kind, dim)
    found = nl.ndarray(shape=(raw.shape[0], width), dtype=nl.float32, buffer=nl.sbuf)
    nan = 0x7F if kind == "compressed" else 0xFF
    nisa.tensor_scalar(
        dst=found, data=raw[:, data : data + width], op0=nl.equal, operand0=float(nan)
    )
    out = nl.ndarray(shape=(raw.shape[0], 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=out, op=nl.maximum, data=found, axis=1)
    return out


def _halves(packed: nl.NkiTensor) -> nl.NkiTensor:
    """Packed e2m1 [P, D/2] as bytes [P, D] with a code in the upper half of each."""
    lanes, count = packed.shape
    out = nl.ndarray(shape=(lanes, count, 2), dtype=nl.uint8, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=out[:, :, 0], data=packed, op0=nl.left_shift, operand0=4)
    nisa.tensor_copy(dst=out[:, :, 1], src=packed, engine=nisa.engine.scalar)
    return out.reshape((lanes, 2 * count))


def opened(raw: nl.NkiTensor, kind: str, dim: int) -> nl.NkiTensor:
    """Codes of records uint8 [P, S] widened to int16 [P, D]: `decoded` takes them from there.

    A step of its own, so that Scalar opens the next records while Vector computes.
    """
    _, data, _ = layout(kind, dim)
    codes = raw[:, 0:data] if kind == "window" else _halves(raw[:, 0:data])
    signed = nl.ndarray(shape=(raw.shape[0], dim), dtype=nl.int16, buffer=nl.sbuf)
    nisa.tensor_copy(dst=signed, src=codes.view(nl.int8), engine=nisa.engine.scalar)
    return signed


def decoded(
    raw: nl.NkiTensor, signed: nl.NkiTensor, kind: str, valid: nl.NkiTensor, dtype: nl.DType
) -> nl.NkiTensor:
    """Records uint8 [P, S] in SBUF as values [P, D], exact in bf16.

    A signed byte widened to 16 bits repeats its sign, so one shift and mask puts sign, exponent and
    mantissa where fp16 has them. Its exponent has another bias, which the product makes good.
    Assumes that Vector reads subnormal fp16 numbers, 0.5 of e2m1 among them, as what they are.

    Args:
        raw: uint8 [P, S].
        signed: int16 [P, D], `opened(raw, ..)`.
        kind: "window", "compressed" or "index".
        valid: (P, 1) fp32, 1.0, or 0.0 for a lane that is to be zeros whatever it holds.
        dtype: bf16 or fp32.
    """
    lanes, dim = signed.shape
    block, data, width = layout(kind, dim)
    whole = kind == "window"
    half = nl.ndarray(shape=(lanes, dim), dtype=nl.uint16, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=half, data=signed.view(nl.uint16),
        op0=nl.left_shift, operand0=7 if whole else 5,
        op1=nl.bitwise_and, operand1=0xBF80 if whole else 0x8E00,
    )  # fmt: skip
    word = _scales(raw[:, data : data + width], valid, 0x7F if kind == "compressed" else 0xFF)
    scale = word.view(nl.float16 if kind == "compressed" else nl.bfloat16)
    # Bias 15 instead of 7 in a window code, instead of 1 in e2m1, instead of 7 in an e4m3 scale.
    bias = 2.0**8 if whole else 2.0**22 if kind == "compressed" else 2.0**14
    out = nl.ndarray(shape=(lanes, dim), dtype=dtype, buffer=nl.sbuf)
    blocks = (lanes, dim // block, block)
    nisa.scalar_tensor_tensor(
        dst=out.reshape(blocks),
        data=half.view(nl.float16).reshape(blocks),
        op0=nl.multiply,
        operand0=bias,
        op1=nl.multiply,
        operand1=scale.expand_dim(2).broadcast(2, block),
    )
    return out
