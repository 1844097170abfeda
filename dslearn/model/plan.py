"""What a layer gets of a call and gives back: tensors, and numbers that do not change by layer.

Shapes: B batch, T tokens of this call, N entries, K selected, G groups, W window, D head_dim,
R rotated dims in a `Groups` or `Plan`, B * T rows elsewhere; S streams, d hidden, k experts.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from dslearn.model.caches import Pools, Stretch
from dslearn.model.ring import Window


class Groups(NamedTuple):
    """The groups that a call may close, for kv sources of one ratio.

    Fields: `rows` flat rows [B * G] of an entry pool, the scratch row where the call does not close
    the group; `closed` [B, G]; `cos` and `sin` [B, G, R] of their first positions; `stretch` of
    the call.
    """

    rows: Tensor
    closed: Tensor
    cos: Tensor
    sin: Tensor
    stretch: Stretch


class Plan(NamedTuple):
    """A call as the layers of one ratio see it.

    Fields: `positions` int32 [B, T]; `cos` and `sin` [B, T, R] of them; `window`; the number N of
    `entries` that are looked at, of which a query sees the first `visible` int32 [B, T]; `groups`;
    without compression these three are 0 and None; `watched`, whether to find shares; `lanes` [B]
    of the pools, None for all in order.
    """

    positions: Tensor
    cos: Tensor
    sin: Tensor
    window: Window
    entries: int = 0
    visible: Tensor | None = None
    groups: Groups | None = None
    watched: bool = False
    lanes: Tensor | None = None


class Given(NamedTuple):
    """What a call hands to one layer, beside the streams.

    Fields: `plan` for its ratio; `pools`, None in a call with gradients; `rows` [R, C * E] of its
    Engram table, None without one; `image` [R] bool, the rows of images, None without any.
    """

    plan: Plan
    pools: Pools | None = None
    rows: Tensor | None = None
    image: Tensor | None = None


class Found(NamedTuple):
    """What a layer's attention leaves behind, beside its output and what it stored.

    Fields: `records` [B, T, stride] of its window keys, None in a call with gradients; `u` and `g`
    [B, T, D], the projections of a compressor of ratio 2; `chosen` [B, T, K] entries, -1 for none,
    of a layer that selects; `candidates` of the one that publishes them; `shares`
    [B, T, H, W + K + 1] if asked for.
    """

    records: Tensor | None = None
    u: Tensor | None = None
    g: Tensor | None = None
    chosen: Tensor | None = None
    candidates: Tensor | None = None
    shares: Tensor | None = None


class Left(NamedTuple):
    """What a block leaves behind, beside its output.

    Fields: `found` of its attention; what the attention read, `h` [R, S, d] and `pre` [R, S];
    `gate` [R, S] of an Engram; the experts of each row `ids` and their `weights`, [R, k].
    """

    found: Found
    h: Tensor
    pre: Tensor
    gate: Tensor | None
    ids: Tensor
    weights: Tensor
