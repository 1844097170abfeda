"""Decoding of any batch up to a largest one, by graphs of a few batch sizes.

The contract is that of CUDA-graph runners: `capture` once, then `can_run` and `replay`. A graph has
one batch size, so a batch is padded to the next of a few (`buckets`). Padded rows have length 0 and
run on a lane past the last real one: they write there, to slots that nobody reads, and no byte of
the other lanes changes. Shapes: n rows, V vocabulary, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dslearn.errors import GraphError, UsageError
from dslearn.model import Model
from dslearn.model.chunks import CHUNK, in_chunks
from dslearn.regions import settings
from dslearn.regions.compared import comparing
from dslearn.regions.runner import use

FINE, STEP = (1, 2, 4, 8), 8  # batch sizes with a graph of their own, then every so many
STEPS = 2  # of a capture: the first compiles, and a pair of tokens closes a group
CLOSE = 0.01  # of the largest logit: one activation that rounds the other way moves one so far


def buckets(max_num_seqs: int) -> tuple[int, ...]:
    """Batch sizes that have a graph: 1, 2, 4, 8, then every 8; the largest always.

    Raises:
        UsageError: no sequences.
    """
    if max_num_seqs < 1:
        raise UsageError(f"max_num_seqs={max_num_seqs}: must be at least 1")
    sizes = (*FINE, *range(FINE[-1] + STEP, max_num_seqs, STEP), max_num_seqs)
    return tuple(sorted({size for size in sizes if size <= max_num_seqs}))


class GraphRunner:
    """Sequences of one model, each in its lane, decoded together by captured graphs.

    Args:
        model: its weights must not change after `capture`.
        max_num_seqs: lanes.
        max_len: tokens that a lane has room for.
        mode: "regions" or "whole".

    Attributes:
        buckets: batch sizes, ascending.
        state: of `max_num_seqs` lanes and, last, the scratch lane.

    Raises:
        UsageError: no sequences, or another mode.
    """

    def __init__(
        self, model: Model, max_num_seqs: int, max_len: int, mode: str = "regions"
    ) -> None:
        if settings.check_mode(mode, "mode") == "eager":
            raise UsageError("a graph runner in mode eager: must be regions or whole")
        self.model, self.mode, self.max_num_seqs = model, mode, max_num_seqs
        self.buckets = buckets(max_num_seqs)
        self.state = model.new_state(max_num_seqs + 1, max_len)
        self._captured = False

    def can_run(self, batch: int) -> bool:
        """Whether `replay` takes this many rows: captured, and not more than there are lanes."""
        return self._captured and 1 <= batch <= self.max_num_seqs

    def bucket(self, batch: int) -> int:
        """The smallest bucket that holds `batch` rows."""
        return next(size for size in self.buckets if size >= batch)

    def capture(self, done: Callable[[str], None] | None = None) -> None:
        """Compile what `prefill` and `replay` run, largest first, and compare with eager.

        Args:
            done: told what has been captured, after each: "64 tokens", "batch 8".

        Raises:
            UsageError: lanes are in use.
            GraphError: a region is refused; a compiled graph gives or writes something else than
                the captured one; or the logits are not those of eager code.
        """
        if bool(self.state.positions.any()):
            raise UsageError("capture with sequences in the lanes: capture first, then prefill")
        shapes = [(1, CHUNK)] + [(size, 1) for size in reversed(self.buckets)]
        for batch, tokens in shapes:
            self._capture(batch, tokens)
            if done is not None:
                done(f"batch {batch}" if tokens == 1 else f"{tokens} tokens")
        self._captured = True

    def prefill(self, ids: Tensor, lane: int) -> Tensor:
        """Tokens ids [T] of a sequence, its first or more, into a lane -> logits [V] of the last.

        Raises:
            UsageError, StateError: no such lane or token, or no room.
        """
        self._check_lane(lane)
        with torch.inference_mode(), use(self.mode):
            lanes = torch.tensor([lane])
            return in_chunks(self.model, ids[None], self.state, lanes=lanes)[0, -1]

    def replay(self, ids: Tensor, lanes: Tensor) -> Tensor:
        """One more token for each of some sequences: ids int64 [n], lanes int64 [n] -> [n, V].

        Raises:
            UsageError: more rows than can run, or a lane twice.
        """
        if not self._captured:
            raise UsageError(f"replay of {len(ids)} rows before capture(): capture() comes first")
        if not self.can_run(len(ids)):
            raise UsageError(f"replay of {len(ids)} rows: must be 1..{self.max_num_seqs}")
        if bool((lanes >= self.max_num_seqs).any()):
            raise UsageError(f"lanes={lanes.tolist()}: must be 0..{self.max_num_seqs - 1}")
        padded = self.bucket(len(ids)) - len(ids)
        lengths = [1] * len(ids) + [0] * padded
        rows = torch.cat((ids, ids.new_zeros(padded)))
        scratch = lanes.new_full((padded,), self.max_num_seqs)
        with torch.inference_mode(), use(self.mode):
            logits = self.model.forward(
                rows[:, None], self.state, lengths, torch.cat((lanes, scratch))
            )
        return logits[: len(ids), 0]

    def release(self, lane: int) -> None:
        """Make a lane free for another sequence.

        Raises:
            UsageError: no such lane.
        """
        self._check_lane(lane)
        self.state.clear(lane)

    def _check_lane(self, lane: int) -> None:
        if not 0 <= lane < self.max_num_seqs:
            raise UsageError(f"lane={lane}: must be 0..{self.max_num_seqs - 1}")

    def _capture(self, batch: int, tokens: int) -> None:
        """Run steps of random tokens: compiled, each graph beside its captured one; and eagerly."""
        steps = STEPS if tokens == 1 else 1
        ids = torch.randint(
            self.model.cfg.vocab_size,
            (min(steps, self.state.max_len), batch, tokens),
            generator=torch.Generator().manual_seed(batch),
        )
        with comparing():
            compiled = self._run(ids, self.mode)
        eager = self._run(ids, "eager")
        gap = (compiled - eager).abs().flatten(1).amax(1)
        allowed = CLOSE * float(eager.abs().max())
        if not bool((gap <= allowed).all()):
            row = int(gap.nan_to_num(torch.inf).argmax())
            raise GraphError(
                f"batch {batch}, {tokens} tokens: compiled code and eager differ by "
                f"{float(gap[row]):.3g} in row {row} (allowed: {allowed:.3g}): the compiler is "
                "wrong; dslearn.regions.workshop finds the operation"
            )

    def _run(self, ids: Tensor, mode: str) -> Tensor:
        """Logits [batch, steps, V] of steps on empty lanes, which are empty again after it."""
        batch, tokens = ids.shape[1:]
        lanes, parts = torch.arange(batch), []
        real = min(tokens, self.state.max_len)
        try:
            with torch.inference_mode(), use(mode):
                for step in ids:
                    logits = self.model.forward(step, self.state, [real] * batch, lanes)
                    parts.append(logits[:, real - 1])
        finally:  # whatever happened: `capture` can be called again
            for lane in range(batch):
                self.state.clear(lane)
        return torch.stack(parts, 1)
