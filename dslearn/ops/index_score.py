"""Index scores: their twin, and the operation that the kernel serves."""

from __future__ import annotations

from torch import Tensor

from dslearn.formats import rows
from dslearn.formats.records import Record
from dslearn.kernels import index_score as kernels
from dslearn.ops.registry import Op


def reference(
    q: Tensor, weights: Tensor, keys: Tensor, quantise: bool, round_terms: bool
) -> Tensor:
    """sum_h w_h relu(q_h · key_j), in fp32 or rounded to bf16 after each step.

    Args:
        q: [T, H, I] bf16 or fp32, rotated.
        weights: [T, H] fp32, of any sign.
        keys: [N, S] uint8 "index" records of one sequence.
        quantise: give q the values of its own index record.
        round_terms: round each dot product, each weighted term and the sum to bf16.
    Returns:
        [T, N] fp32.
    Source: docs/reference/model.md, "Indexer".
    """

    def stored(x: Tensor) -> Tensor:
        return x.bfloat16().float() if round_terms else x

    wide = q.float()
    if quantise:
        wide = rows.fake_fp4(wide, 32)
    dots = stored(wide @ Record("index", q.shape[-1]).unpack(keys).mT)
    return stored(stored(dots.relu() * weights[..., None]).sum(1))


index_score = Op(
    "index_score(Tensor q, Tensor weights, Tensor keys, bool quantise, bool round_terms) -> Tensor",
    twin=reference,
    fake=lambda q, weights, keys, quantise, round_terms: weights.new_empty(
        (q.shape[0], keys.shape[0])
    ),
    kernel=kernels.index_score,
    takes={"q": "bf16|fp32 [T, H, I]", "weights": "fp32 [T, H]", "keys": "u8 [N, S]"},
)
