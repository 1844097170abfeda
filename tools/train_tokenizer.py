"""Train the tokenizer of `tiny`: byte-level BPE, exactly 2048 ids, on the training split.

    python tools/train_tokenizer.py            # writes dslearn/data/tiny/tokenizer*.json, 10 s
    python tools/train_tokenizer.py --check    # only compares: exit 1 when a byte would change

Ids: 0-2 begin, end and padding, then the 256 bytes, then merges, then seven reserved tokens, the
spellings of the released tokenizers. No post-processor: a caller who wants the begin token adds it.

Text is cut into pieces before merging (`PIECES`), so that 2048 ids are spent well on Python:

* at most three digits;
* a word with at most one punctuation mark and one space before it: ` name`, `.name`, `, name`;
* a run of punctuation with the line break and indentation that follows: `):` + newline + 8 spaces;
* blank lines, a line break and indentation in steps of four;
* any other run of spaces, all but the last of which stands alone when a word follows.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

import corpus
from dslearn.errors import DslearnError, UsageError

OUT = Path(__file__).parents[1] / "dslearn/data/tiny"
VOCAB_SIZE = 2048
FIRST = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>")
LAST = (
    "<｜System｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<think>",
    "</think>",
    "<｜image｜>",
    "<｜noise｜>",
)
CONFIG = {  # read by transformers; the library itself needs tokenizer.json alone
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": FIRST[0],
    "eos_token": FIRST[1],
    "pad_token": FIRST[2],
    "add_bos_token": False,
    "add_eos_token": False,
    "clean_up_tokenization_spaces": False,
}
PIECES = (
    r"\p{N}{1,3}"
    r"|[^\s\p{L}\p{N}]? ?\p{L}+"
    r"| ?[^\s\p{L}\p{N}]+(?: *[\r\n]+(?: {4})*)?"
    r"|\s*[\r\n]+(?: {4})*"
    r"|\s+(?!\S)"
    r"|\s+"
)


def untrained() -> Tokenizer:
    """The pipeline without a vocabulary: pieces, then bytes; decoding is the exact inverse."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def train(texts: Iterable[str], vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """Train on `texts`; the result depends on their content and order only.

    Raises:
        UsageError: the texts are too few to fill `vocab_size` ids.
    """
    tokenizer = untrained()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(LAST),
        special_tokens=[_special(text) for text in FIRST],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([_special(text) for text in LAST])
    if tokenizer.get_vocab_size() != vocab_size:
        raise UsageError(
            f"training gave {tokenizer.get_vocab_size()} ids, {vocab_size} are asked for: "
            "give more text or ask for fewer"
        )
    return tokenizer


def bytes_per_token(tokenizer: Tokenizer, texts: list[str]) -> float:
    """UTF-8 bytes of `texts` per token of their encodings.

    Raises:
        DslearnError: a text does not come back from its tokens.
    """
    encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
    for index, (text, encoding) in enumerate(zip(texts, encodings, strict=True)):
        if tokenizer.decode(encoding.ids, skip_special_tokens=False) != text:
            raise DslearnError(f"text {index} ({text[:40]!r}...) does not survive a round trip")
    return sum(len(text.encode()) for text in texts) / sum(len(e.ids) for e in encodings)


def _special(text: str) -> AddedToken:
    return AddedToken(text, special=True, normalized=False)


def _file_bytes(tokenizer: Tokenizer) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer.save(str(Path(scratch) / "tokenizer.json"), pretty=False)
        made = (Path(scratch) / "tokenizer.json").read_bytes()
    config = json.dumps(CONFIG, ensure_ascii=False, indent=2) + "\n"
    return {"tokenizer.json": made, "tokenizer_config.json": config.encode()}


def main() -> int:
    """Train, measure on the held-out split, then write or compare the two files."""
    parser = argparse.ArgumentParser(description="train the tokenizer of tiny")
    parser.add_argument("--root", type=Path, default=corpus.stdlib(), help="library directory")
    parser.add_argument("--out", type=Path, default=OUT, help="directory to write or compare")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    args = parser.parse_args()
    tokenizer = train(data.decode() for _, data in corpus.read_split("train", args.root))
    held_out = [data.decode() for _, data in corpus.read_split("held-out", args.root)]
    ratio = bytes_per_token(tokenizer, held_out)
    print(f"{tokenizer.get_vocab_size()} ids, {ratio:.4f} bytes per held-out token")
    made = _file_bytes(tokenizer)
    if args.check:
        changed = [name for name in made if (args.out / name).read_bytes() != made[name]]
        print(f"{args.out}: " + (f"differs: {', '.join(changed)}" if changed else "identical"))
        return 1 if changed else 0
    args.out.mkdir(parents=True, exist_ok=True)
    for name, data in made.items():
        (args.out / name).write_bytes(data)
        print(f"wrote {args.out / name} ({len(data)} bytes)")
    return 0


if __name__ == "__main__":
    sys.exit(corpus.exit_code(main))
