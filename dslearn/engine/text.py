"""Token ids to text as it streams: whole characters only, nothing past a stop string."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

from dslearn.errors import UsageError

REPLACEMENT = "\ufffd"  # what a decoder prints for bytes that are not (yet) a character


class TextStream:
    """Decodes ids one by one and holds back a character that is not complete."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._pending: list[int] = []

    def push(self, token_id: int) -> str:
        """The text that `token_id` completes; often empty inside a multi-byte character.

        Pieces add up to the text of all ids decoded at once, also where bytes are invalid.
        """
        self._pending.append(token_id)
        text = self._decode(self._pending)
        if not text.endswith(REPLACEMENT):
            self._pending = []
            return text
        # What stands before a cut that changes nothing can no longer become another character.
        for cut in range(len(self._pending) - 1, 0, -1):
            head, tail = self._decode(self._pending[:cut]), self._decode(self._pending[cut:])
            if tail and head + tail == text:
                self._pending = self._pending[cut:]
                return head
        return ""

    def flush(self) -> str:
        """What is left at the end: at most one replacement character."""
        text = self._decode(self._pending)
        self._pending = []
        return text.rstrip(REPLACEMENT) + REPLACEMENT if text.endswith(REPLACEMENT) else text

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids)) if ids else ""


class StopFilter:
    """Cuts streamed text at the first stop string, wherever the pieces are split.

    Of several stops the one that begins first counts, so text is held back while a longer stop
    that began before a complete one may still arrive.

    Args:
        stops: the strings; a single string is one stop.

    Raises:
        UsageError: an empty stop string, which would stop before the first character.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = (stops,) if isinstance(stops, str) else tuple(stops)
        if any(not stop for stop in self._stops):
            raise UsageError("an empty stop string stops everything: give at least one character")
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """The part of the stream that is safe to show; sets `stopped` at a stop string."""
        if self.stopped:
            return ""
        text = self._held + text
        found, begun = self._first(text), self._begun(text)
        if found <= begun:
            self._held = ""
            self.stopped = found < len(text)
            return text[:found]
        self._held = text[begun:]
        return text[:begun]

    def flush(self) -> str:
        """What was held as the possible start of a stop string that never came."""
        text, self._held = self._held, ""
        found = self._first(text)
        self.stopped = self.stopped or found < len(text)
        return text[:found]

    def _first(self, text: str) -> int:
        """Where the first complete stop begins; the length of `text` if there is none."""
        return min((at for stop in self._stops if (at := text.find(stop)) >= 0), default=len(text))

    def _begun(self, text: str) -> int:
        """Where the first stop that `text` does not finish begins; its length if there is none."""
        longest = max(map(len, self._stops), default=1) - 1
        for at in range(max(0, len(text) - longest), len(text)):
            if any(len(s) > len(text) - at and s.startswith(text[at:]) for s in self._stops):
                return at
        return len(text)
