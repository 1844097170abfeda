"""Comments that allow what a lint rule refuses: `# nki: allow rule-id reason`.

The word before the colon says which lint is meant. Such a comment counts for the lines of the
expression or statement head it stands beside, and for the next line when it stands alone. Without
a reason it allows nothing and is itself reported, under the rule `allow-comment`.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field


@dataclass
class Allowed:
    """Line -> rules allowed there, and (line, column, message) of comments that allow nothing."""

    lines: dict[int, set[str]] = field(default_factory=dict)
    wrong: list[tuple[int, int, str]] = field(default_factory=list)

    def covers(self, rule: str, first: int, last: int) -> bool:
        """Whether `rule` is allowed on one of the lines `first` to `last`."""
        return any(rule in self.lines.get(line, ()) for line in range(first, last + 1))


def read(source: str, known: Collection[str], word: str) -> Allowed:
    """The comments `# word: allow` of a source text; `known` are the rules they may name."""
    allowed = Allowed()
    if f"{word}:" not in source:
        return allowed
    comment = re.compile(rf"#\s*{word}:\s*allow\b\s*(?P<rules>[\w,-]*)\s*(?P<reason>.*)")
    for token in _tokens(source):
        match = comment.search(token.string) if token.type == tokenize.COMMENT else None
        if match is None:
            continue
        line, column = token.start
        named = [name for name in match["rules"].split(",") if name]
        unknown = [name for name in named if name not in known]
        if unknown or not named:
            message = f"no rule is called {unknown[0]}" if unknown else "no rule is named"
            allowed.wrong.append((line, column + 1, message))
        elif not match["reason"].strip():
            allowed.wrong.append((line, column + 1, f"no reason to allow {', '.join(named)}"))
        else:
            alone = not token.line[:column].strip()
            allowed.lines.setdefault(line + alone, set()).update(named)
    return allowed


def _tokens(source: str) -> Iterator[tokenize.TokenInfo]:
    """Tokens up to the first line that is not Python, such as a notebook's `!command`."""
    try:
        yield from tokenize.generate_tokens(io.StringIO(source).readline)
    except (tokenize.TokenError, SyntaxError):
        return
