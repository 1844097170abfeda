"""Many prompts through a graph runner: each takes a lane when one is free, and leaves it later.

Every sequence has a sampler of its own, so its tokens are those that it has alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dslearn.engine.lm import LM
from dslearn.engine.sampler import Sampler, Sampling
from dslearn.errors import UsageError
from dslearn.regions.graph_runner import GraphRunner


@dataclass
class _Sequence:
    """A prompt that runs: its number, and its tokens so far."""

    number: int
    sampler: Sampler
    tokens: list[int] = field(default_factory=list)


def together(
    lm: LM,
    runner: GraphRunner,
    prompts: Sequence[Sequence[int]],
    count: int,
    sampling: Sampling | None = None,
) -> Iterator[tuple[int, list[int]]]:
    """Number of a prompt and the ids that follow it, up to `count`, as each ends.

    Args:
        lm: whose model the runner has.
        runner: captured, with its lanes free.
        prompts: token ids, one list for each prompt.
        count: new tokens at most; the end token is not among them.
        sampling: default greedy.

    Raises:
        UsageError: a prompt that is empty, or with its new tokens too long for a lane.
    """
    room = runner.state.max_len
    for number, ids in enumerate(prompts):
        if not 1 <= len(ids) <= room - count:
            raise UsageError(
                f"prompt {number + 1} of {len(ids)} tokens plus {count} new ones: a lane has room "
                f"for {room} (--max-len)"
            )
    waiting, free = deque(enumerate(prompts)), list(range(runner.max_num_seqs))
    running: dict[int, _Sequence] = {}
    while waiting or running:
        heard: dict[int, Tensor] = {}
        if running:
            lanes = sorted(running)
            last = torch.tensor([running[lane].tokens[-1] for lane in lanes])
            heard = dict(zip(lanes, runner.replay(last, torch.tensor(lanes)), strict=True))
        while waiting and free:
            number, ids = waiting.popleft()
            lane = free.pop()
            running[lane] = _Sequence(number, Sampler(sampling or Sampling()))
            heard[lane] = runner.prefill(torch.tensor(ids), lane)
        for lane, logits in heard.items():
            one = running[lane]
            token = one.sampler(logits.numpy())
            if token != lm.config.eos_token_id:
                one.tokens.append(token)
            if token == lm.config.eos_token_id or len(one.tokens) == count:
                del running[lane]
                runner.release(lane)
                free.append(lane)
                yield one.number, one.tokens
