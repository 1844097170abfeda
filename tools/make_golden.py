"""Choose the three golden prompts of `tiny` and write `dslearn/data/golden/tiny.json`.

    python tools/make_golden.py                 # for the shipped weights; see docs/tiny.md

A prompt begins where a line of a held-out file begins. Stretches of file are tried in a fixed
random order, and decoded only where the model foresees what follows. A prompt is kept if

* its greedy tokens hold no special token, no 4-gram more than twice, and do not drone on;
* they stay the greedy tokens in 32 reruns with relative noise of 2^-22 on every product, and in 8
  reruns with every product rounded to bf16 that the chip rounds;
* at every step the lead over the second token is at least twice its largest change in any rerun;
* a second implementation in plain NumPy gives the same tokens, and with the quantisers off (where
  nothing can round the other way) the logits to 1e-3.

What noise does to the logits that are written down becomes the golden check's tolerance for them.
Among those kept, one whose text parses as Python wins, then the one with more different tokens.
The same weights and list of files give the same prompts on the same machine.
"""

from __future__ import annotations

import argparse
import importlib
import json
import shlex
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

import corpus
import golden_search as search
from dslearn.checkpoint.hashing import target_hash
from dslearn.engine import LM, load
from dslearn.engine.golden import LOGIT_TOLERANCE
from dslearn.engine.lm import model_directory
from dslearn.errors import UsageError
from dslearn.numerics import Numerics

ROOT = Path(__file__).parents[1]
OUT = ROOT / "dslearn/data/golden/tiny.json"
SIZES = {"short": (8, 16), "medium": (40, 64), "long": (150, 220)}  # tokens, begin included
TOP = 5
NOISE_RUNS, BF16_RUNS = 32, 8
FLOOR = 0.2  # a lead below this hardly ever survives: not worth a rerun
BATCH = 64
TWIN_TOLERANCE = 1e-3

Twin = Callable[[list[int], list[int]], np.ndarray]
PLAIN = {"activations": False, "caches": False}


@dataclass(frozen=True)
class Found:
    """A prompt that passed: ids, tokens, logits [S, V], and how safely it passed."""

    prompt: str
    ids: list[int]
    tokens: list[int]
    logits: Tensor
    text: str
    steadiness: float  # smallest lead over its largest change; at least 2
    moved: float  # largest change of a written logit under noise
    plain: Tensor  # logits [S, V] with activations and caches not quantised
    twin: float  # largest difference of a written plain logit from the NumPy twin

    @property
    def rank(self) -> tuple[bool, int]:
        """Better ones are larger."""
        return search.reads_as_code(self.prompt, self.text), len(set(self.tokens))


def twin_of(directory: Path, **options: bool) -> Twin:
    """The independent implementation: (prompt ids, tokens) -> logits [S, V]."""
    sys.path.insert(0, str(ROOT / "tests/golden"))
    numpy_model = importlib.import_module("numpy_model")
    twin = numpy_model.load(directory, **options)
    return lambda ids, tokens: numpy_model.continuation_logits(twin, ids, tokens)


def written(logits: Tensor) -> dict[int, Tensor]:
    """Step -> ids of the highest logits, for the steps that a file holds: logits [S, V]."""
    last = len(logits) - 1
    steps = sorted({0, 1, last // 3, 2 * last // 3, last})
    return {s: logits[s].topk(TOP).indices for s in steps}


@dataclass(frozen=True)
class Models:
    """What is compared: the model and its twin as shipped, and both with the quantisers off."""

    lm: LM
    twin: Twin
    plain: LM
    plain_twin: Twin

    @staticmethod
    def of(directory: Path) -> Models:
        """All four, of the checkpoint in `directory`."""
        return Models(
            load(directory),
            twin_of(directory),
            load(directory, Numerics(**PLAIN)),
            twin_of(directory, **PLAIN),
        )


def examine(models: Models, prompt: str, ids: list[int], tokens: list[int]) -> Found | str:
    """All stress tests of one continuation; -> what it passed with, or the first it failed."""
    lm = models.lm
    again, logits = search.decode(lm, ids, len(tokens))
    if again != tokens:
        return "batch"
    kept = written(logits)
    if models.twin(ids, tokens).argmax(-1).tolist() != tokens:
        return "twin tokens"
    plain = search.teacher_forced(models.plain, ids, tokens, 1)[0]
    expected = torch.from_numpy(models.plain_twin(ids, tokens))
    apart = max(float((plain[s] - expected[s])[i].abs().max()) for s, i in kept.items())
    if apart >= TWIN_TOLERANCE:
        return "twin logits"
    lead, change = search.leads(logits, tokens), torch.zeros(len(tokens))
    moved = 0.0
    for bf16, runs in ((True, BF16_RUNS), (False, NOISE_RUNS)):
        for disturbed in search.reruns(lm, ids, tokens, runs, bf16=bf16):
            seen = search.leads(disturbed, tokens)
            if bool((seen <= 0).any()):
                return "token"
            change = torch.maximum(change, (seen - lead).abs().amax(0))
            if bool((lead < 2 * change).any()):
                return "margin"
            if not bf16:
                rows = [(disturbed[:, s] - logits[s])[:, i].abs().max() for s, i in kept.items()]
                moved = max(moved, *map(float, rows))
    steadiness = float((lead / change).min())
    text = lm.tokenizer.decode(tokens)
    return Found(prompt, ids, tokens, logits, text, steadiness, moved, plain, apart)


def look(models: Models, texts: list[str], name: str, args: argparse.Namespace) -> Found:
    """Search one size of prompt until `args.enough` are found or the windows are used up."""
    lm, (low, high) = models.lm, SIZES[name]
    bar = tqdm(total=args.windows, desc=name, unit="window", mininterval=2)
    source = islice(search.windows(lm, texts, high + search.AHEAD, args.seed), args.windows)
    failed: Counter[str] = Counter()
    found: list[Found] = []
    while len(found) < args.enough:
        prompts: list[tuple[str, list[int]]] = []
        while len(prompts) < BATCH and (batch := list(islice(source, BATCH))):
            prompts += search.promising(lm, batch, low, high, FLOOR)
            bar.update(len(batch))
        if not prompts:
            break
        alive = search.decode_batch(lm, [ids for _, ids in prompts], args.tokens, FLOOR)
        failed["below floor"] += len(prompts) - len(alive)
        for index, tokens in alive.items():
            result = examine(models, *prompts[index], tokens)
            if isinstance(result, Found):
                found.append(result)
                bar.write(f"{name}: {result.prompt[-40:]!r} -> {result.text!r}")
            else:
                failed[result] += 1
        bar.set_postfix_str(f"found {len(found)}, failed {dict(failed)}")
    bar.close()
    if not found:
        raise UsageError(
            f"no {name} prompt among {bar.n} windows (failed: {dict(failed)}); raise --windows "
            "or change --seed"
        )
    return max(found, key=lambda f: f.rank)


def entry(name: str, found: Found) -> dict[str, Any]:
    """One prompt as the golden file holds it."""
    kept = written(found.logits)
    usual, plain = (
        {str(s): {str(int(i)): round(float(x[s, i]), 5) for i in ids} for s, ids in kept.items()}
        for x in (found.logits, found.plain)
    )
    return {
        "name": name,
        "prompt": found.prompt,
        "text": found.text,
        "prompt_ids": found.ids,
        "tokens": found.tokens,
        "margins": [round(m, 4) for m in search.leads(found.logits, found.tokens).tolist()],
        "logits": usual,
        "plain_logits": plain,
        "logit_tolerance": round(max(LOGIT_TOLERANCE, 2 * found.moved), 3),
        "lead_over_change": round(found.steadiness, 2),
        "moved_by_noise": round(found.moved, 4),
        "twin_difference": float(f"{found.twin:.2g}"),
    }


def render(header: dict[str, Any], entries: list[dict[str, Any]]) -> str:
    """JSON with one field per line."""
    blocks = [
        " {\n" + ",\n".join(f'  "{k}": {json.dumps(v)}' for k, v in e.items()) + "\n }"
        for e in entries
    ]
    head = "".join(f'"{k}": {json.dumps(v)},\n' for k, v in header.items())
    return "{\n" + head + '"prompts": [\n' + ",\n".join(blocks) + "\n]\n}\n"


def main() -> int:
    """Search, print what was chosen, write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="tiny", help="checkpoint directory (default: tiny)")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--windows", type=int, default=20_000, help="stretches to try, per size")
    parser.add_argument("--tokens", type=int, default=32, help="new tokens per prompt, at least 32")
    parser.add_argument("--enough", type=int, default=2, help="prompts to choose from, per size")
    parser.add_argument("--seed", type=int, default=0, help="of the order of windows")
    parser.add_argument("--root", type=Path, help="the standard library to take prompts from")
    args = parser.parse_args()
    if args.tokens < 32:
        raise UsageError(f"--tokens {args.tokens}: golden texts have at least 32 new tokens")
    directory = model_directory(args.model)
    models = Models.of(directory)
    texts = [data.decode() for _, data in corpus.read_split("held-out", args.root)]
    chosen = {name: look(models, texts, name, args) for name in SIZES}
    header = {
        "model_hash": target_hash(directory),
        "command": shlex.join(["python", "tools/make_golden.py", *sys.argv[1:]]),
        "numerics": repr(models.lm.model.numerics),
        "reruns": f"{NOISE_RUNS} with relative noise {search.RELATIVE:.3g}, {BF16_RUNS} in bf16",
    }
    entries = [entry(name, found) for name, found in chosen.items()]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(render(header, entries), encoding="utf-8")
    for e in entries:
        print(
            f"{e['name']}: {len(e['prompt_ids'])} + {len(e['tokens'])} tokens, smallest margin "
            f"{min(e['margins']):.3f} ({e['lead_over_change']} times its change), "
            f"twin {e['twin_difference']:.1e}\n{e['prompt']}|{e['text']}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(corpus.exit_code(main))
