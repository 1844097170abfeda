"""Token ids to text as it streams: whole characters only, nothing past a stop string."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

from dslearn.errors import UsageError

REPLACEMENT = "\ufffd"  # what a decoder prints for bytes that are not (yet) a character
LONGEST_CHARACTER = 4  # bytes, and so at most as many tokens


class TextStream:
    """Decodes ids one by one and holds back a character that is not complete."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._pending: list[int] = []

    def push(self, token_id: int) -> str:
        """The text that `token_id` completes; often empty inside a multi-byte character."""
        self._pending.append(token_id)
        text = str(self._tokenizer.decode(self._pending))
        if text.endswith(REPLACEMENT) and len(self._pending) < LONGEST_CHARACTER:
            return ""
        self._pending = []
        return text

    def flush(self) -> str:
        """What is left at the end: at most one replacement character."""
        text = str(self._tokenizer.decode(self._pending)) if self._pending else ""
        self._pending = []
        return text.rstrip(REPLACEMENT) + REPLACEMENT if text.endswith(REPLACEMENT) else text


class StopFilter:
    """Cuts streamed text at the first stop string, wherever the pieces are split.

    Raises:
        UsageError: an empty stop string, which would stop before the first character.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if any(not stop for stop in stops):
            raise UsageError("an empty stop string stops everything: give at least one character")
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """The part of the stream that is safe to show; sets `stopped` at a stop string."""
        text = self._held + text
        hits = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if hits:
            self.stopped, self._held = True, ""
            return text[: min(hits)]
        held = self._partial(text)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def flush(self) -> str:
        """What was held as the possible start of a stop string that never came."""
        text, self._held = self._held, ""
        return text

    def _partial(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        for size in range(min(len(text), max(map(len, self._stops), default=1) - 1), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self._stops):
                return size
        return 0
