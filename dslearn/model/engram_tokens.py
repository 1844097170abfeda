"""Token compression: tokens that read the same once normalised share one Engram id.

"The", " the" and "THE" hash alike, so the n-gram tables are not split by case or spacing.
Source: docs/reference/model.md, "Engram"; the released tokenizer gives exactly 99,092 ids.
"""

from __future__ import annotations

import numpy as np
from tokenizers import Regex, Tokenizer, normalizers

LONE_SPACE = "\ue000"  # private-use stand-in that keeps a token of one space from being stripped

NORMALIZER = normalizers.Sequence(
    [
        normalizers.NFKC(),
        normalizers.NFD(),
        normalizers.StripAccents(),
        normalizers.Lowercase(),
        normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
        normalizers.Replace(Regex(r"^ $"), LONE_SPACE),
        normalizers.Strip(),
        normalizers.Replace(LONE_SPACE, " "),
    ]
)


def token_key(tokenizer: Tokenizer, token_id: int) -> str:
    """The text by which a token is identified.

    A token that is not whole UTF-8 keeps its raw vocabulary string; one that normalises to
    nothing keeps its text.
    """
    text = tokenizer.decode([token_id], skip_special_tokens=False)
    if "\ufffd" in text:
        return str(tokenizer.id_to_token(token_id))
    return str(NORMALIZER.normalize_str(text)) or text


def token_map(tokenizer: Tokenizer) -> np.ndarray:
    """Compressed id of every token id, int64 [len(tokenizer)], numbered by first appearance."""
    numbers: dict[str, int] = {}
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    keys = (token_key(tokenizer, i) for i in range(size))
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
